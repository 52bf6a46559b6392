"""The one loop: the paper's Algorithm 1, from the first image of the stream to the last."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ccl.data import ImageSource, chain, epoch_batches
from ccl.training.learner import Learner
from ccl.training.optimizer import Plan
from ccl.training.remembering import Selection, remember
from ccl.views import Viewer


class Observer(Protocol):
    """Whoever watches: a progress display, a log."""

    def step_begins(self, step: int, num_new: int, num_old: int, batches_per_epoch: int) -> None: ...

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int) -> None: ...

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None: ...


class Quiet:
    """An observer that does nothing."""

    def step_begins(self, step: int, num_new: int, num_old: int, batches_per_epoch: int) -> None: ...

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int) -> None: ...

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None: ...


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
    num_clusters: Sequence[int] = (),
    observer: Observer = _QUIET,
    after_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Learn D_1 … D_N one after the other; step t reads D_t and the rehearsal memory S, and nothing else.

    With a `selection`, `num_clusters` says for each step how many groups its images are thought to have.
    """
    optimizer: torch.optim.SGD | None = None
    for step, new in enumerate(stream):
        images = chain([new, learner.memory.source_like(new)])  # D = D_t ∪ S
        optimizer = plan.optimizer(learner.encoder, optimizer)
        learner.begin_step(step, images.ids, num_new=len(new))  # θ_T ← θ_q
        for epoch in range(plan.epochs):
            batches = epoch_batches(images.ids, plan.batch_size, plan.seed, step, epoch, multiple=plan.batch_multiple)
            if epoch == 0:
                observer.step_begins(step, len(new), len(images) - len(new), len(batches))
            learning_rate = plan.learning_rate_at(epoch)
            optimizer.param_groups[0]["lr"] = learning_rate
            for batch in viewer.batches(
                images,
                batches,
                moment=(step, epoch),
                num_views=learner.objective.num_views,
                plain=learner.wants_plain(len(images)),
            ):
                losses, lesson = learner.losses(batch, (step, epoch))  # L_contrast, L_ESQ, L_kd
                total = learner.total(losses)
                values = finite(losses, step, epoch, batch.ids)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(total)
                optimizer.step()
                learner.after_update(lesson)  # θ_k follows θ_q; Q and ESQ take their keys
                observer.updated(step, epoch, values, len(batch.ids))
            learner.end_epoch()  # θ_T follows θ_q
            observer.epoch_ends(step, epoch, learning_rate)
        if selection is not None:
            remember(learner, new, viewer, step, num_clusters[step], selection)  # S ← S ∪ Sample_strategy(D_t)
        after_step(step)


def finite(losses: Mapping[str, Tensor], step: int, epoch: int, ids: Tensor) -> dict[str, float]:
    """The losses as numbers; raises before any update if one is not finite."""
    values = {name: float(loss.detach()) for name, loss in losses.items()}
    bad = [name for name, value in values.items() if value - value != 0.0]  # nan and infinity differ from themselves
    if bad:
        raise NotFiniteError(
            f"the loss {bad[0]!r} is {values[bad[0]]} in step {step + 1}, epoch {epoch + 1}, in the batch of image "
            f"{int(ids[0])}; no parameter was moved. Try a lower optimizer.learning_rate or a higher temperature."
        )
    return values
