"""The one loop: the paper's Algorithm 1, from the first image of the stream to the last."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.data import ImageSource, chain, epoch_batches
from ccl.training.exemplars import Remembered, Selection, remember
from ccl.training.learner import Learner
from ccl.training.optimizer import Plan
from ccl.training.progress import Progress
from ccl.views import Viewer

Moment = Literal["update", "epoch", "phase"]  # after a batch; after an epoch; after training, selection or probe


class Observer(Protocol):
    """Whoever watches: a progress display, a log. A step that is gone on with begins again, not new."""

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None: ...

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None: ...

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None: ...

    def remembered(self, step: int, what: Remembered) -> None: ...


class Quiet:
    """An observer that does nothing."""

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None: ...

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None: ...

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None: ...

    def remembered(self, step: int, what: Remembered) -> None: ...


_QUIET = Quiet()


class NotFiniteError(ArithmeticError):
    """A loss became nan or infinite; nothing was updated with it."""


def learn_stream(
    learner: Learner,
    stream: Sequence[ImageSource],
    viewer: Viewer,
    plan: Plan,
    *,
    selection: Selection | None = None,
    num_clusters: Sequence[int | None] = (),
    observer: Observer = _QUIET,
    after_step: Callable[[int], None] = lambda step: None,
    progress: Progress | None = None,
    save: Callable[[Progress, Moment], None] = lambda progress, moment: None,
) -> None:
    """Learn D_1 … D_N one after the other; step t reads D_t and the rehearsal memory S, and nothing else.

    With a `selection`, `num_clusters` says for each step how many groups its images are thought to have; None has it
    estimated. `progress` is where to begin, or to go on; `save` is called wherever everything could be saved, with the
    kind of moment it is.
    """
    at = progress or Progress()
    for step in range(at.step, len(stream)):
        new = stream[step]  # D_t arrives
        if at.phase == "train":
            images = chain([new, learner.memory.source_like(new)])  # D = D_t ∪ S
            optimizer = at.take(plan.optimizer(learner.encoder, at.optimizer), plan.carry_momentum)
            if at.is_new_step:
                learner.begin_step(step, images.ids, num_new=len(new))  # θ_T ← θ_q
            else:
                learner.rejoin_step(step, num_new=len(new))
            observer.step_begins(step, len(new), len(images) - len(new), at.is_new_step)
            for epoch in range(at.epoch, plan.epochs):
                _learn_epoch(learner, images, viewer, plan, optimizer, observer, at, save)
                learner.end_epoch()  # θ_T follows θ_q
                observer.epoch_ends(step, epoch, plan.learning_rate_at(epoch))
                at.epoch, at.batch = epoch + 1, 0
                save(at, "epoch")
            at.phase = "remember"
            save(at, "phase")
        if at.phase == "remember":
            if selection is not None:
                kept = remember(learner, new, viewer, step, num_clusters[step], selection)  # S ← S ∪ Sample(D_t)
                if kept is not None:
                    observer.remembered(step, kept)
            at.phase = "probe"
            save(at, "phase")
        after_step(step)
        at.step, at.epoch, at.batch, at.phase = step + 1, 0, 0, "train"
        save(at, "phase")


def _learn_epoch(
    learner: Learner,
    images: ImageSource,
    viewer: Viewer,
    plan: Plan,
    optimizer: torch.optim.SGD,
    observer: Observer,
    at: Progress,
    save: Callable[[Progress, Moment], None],
) -> None:
    """Every image of D = D_t ∪ S once, from the batch where `at` stands; each rank sees its share of a batch."""
    here = (at.step, at.epoch)
    batches = epoch_batches(images.ids, plan.batch_size, plan.seed, *here, multiple=plan.batch_multiple)
    optimizer.param_groups[0]["lr"] = plan.learning_rate_at(at.epoch)
    for batch in viewer.batches(
        images,
        [ranks.share(batch) for batch in batches[at.batch :]],
        moment=here,
        num_views=learner.objective.num_views,
        plain=learner.wants_plain(len(images)),
    ):
        losses, context = learner.losses(batch, here)  # L_contrast, L_ESQ, L_kd
        total = learner.total(losses)
        values = finite(losses, *here, batch.ids)
        optimizer.zero_grad(set_to_none=True)
        scaler = learner.scaler  # float16 only
        torch.autograd.backward(scaler.scaled(total) if scaler else total)
        learner.sync_gradients()
        if scaler is None or scaler.unscale(optimizer):
            refuse_bad_gradients(learner.encoder, *here, batch.ids)
            optimizer.step()
        learner.after_update(context)  # θ_k follows θ_q; Q and ESQ take their keys
        at.batch += 1
        observer.updated(*here, values, ranks.size() * len(batch.ids), at.batch / len(batches))
        save(at, "update")


def finite(losses: Mapping[str, Tensor], step: int, epoch: int, ids: Tensor) -> dict[str, float]:
    """The losses as numbers, means over all ranks; raises before any update if one is not finite."""
    stacked = torch.stack([loss.detach().float() for loss in losses.values()])
    ranks.average([stacked])
    values = dict(zip(losses, stacked.tolist(), strict=True))
    for name, value in values.items():
        if not math.isfinite(value):
            raise NotFiniteError(_bad_batch(f"the loss {name!r} is {value}", step, epoch, ids))
    return values


def refuse_bad_gradients(encoder: nn.Module, step: int, epoch: int, ids: Tensor) -> None:
    """A finite loss can have a gradient that is not: raise before it moves a parameter."""
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    if not math.isfinite(float(torch.nn.utils.get_total_norm(gradients))):
        names = [name for name, p in encoder.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        raise NotFiniteError(
            _bad_batch(f"the gradient of {', '.join(names[:3]) or 'all'} is not finite", step, epoch, ids)
        )


def _bad_batch(what: str, step: int, epoch: int, ids: Tensor) -> str:
    shown = ", ".join(str(number) for number in ids[:8].tolist())
    return (
        f"{what} in step {step + 1}, epoch {epoch + 1}, in the batch of images {shown}, …; no parameter was moved, the "
        "last checkpoint is good. Try a lower optimizer.learning_rate or a higher temperature."
    )
