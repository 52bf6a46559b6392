"""One update of a learner: losses, gradients, the optimizer's step; nothing moves on numbers that are not finite."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ccl.training.gradient_sync import GradientSync
from ccl.training.learner import Learner
from ccl.views import ViewBatch


class NotFiniteError(ArithmeticError):
    """A loss or gradient became nan or infinite; nothing was updated with it."""


def update(
    learner: Learner, batch: ViewBatch, optimizer: torch.optim.Optimizer, moment: tuple[int, int], done: float = 0.0
) -> dict[str, float]:
    """Learn from one batch, this rank's share of it; each term's loss by its name.

    Moment is (step, epoch), `done` the share of the step's updates that are made with this one.
    """
    losses, context = learner.losses(batch, moment, done)  # L_contrast, L_ESQ, L_kd
    total = learner.total(losses)
    optimizer.zero_grad(set_to_none=True)
    scaler = learner.scaler  # float16 only
    sync = GradientSync(learner)
    torch.autograd.backward(scaler.scaled(total) if scaler else total)
    means = torch.stack([loss.detach().float() for loss in losses.values()])  # (terms,)
    sync.finish(means)  # of all ranks from here on
    values = dict(zip(losses, means.tolist(), strict=True))
    _refuse_bad_losses(values, moment, batch.ids)
    if scaler is None or scaler.unscale(optimizer):
        _refuse_bad_gradients(learner, optimizer, moment, batch.ids)
        optimizer.step()
    learner.after_update(context)  # θ_k follows θ_q; Q and ESQ take their keys
    return values


def _refuse_bad_losses(values: Mapping[str, float], moment: tuple[int, int], ids: Tensor) -> None:
    """Raise before any update if a loss is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise NotFiniteError(_bad_batch(f"the loss {name!r} is {value}", moment, ids))


def _refuse_bad_gradients(
    learner: Learner, optimizer: torch.optim.Optimizer, moment: tuple[int, int], ids: Tensor
) -> None:
    """A finite loss can have a gradient that is not: raise before it moves a parameter."""
    # The optimizer has them as a list; the learner would walk through all its modules in every update.
    moved = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not math.isfinite(float(torch.nn.utils.get_total_norm(moved))):
        gradients = {name: p.grad for name, p in learner.trained_parameters().items() if p.grad is not None}
        names = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        raise NotFiniteError(_bad_batch(f"the gradient of {', '.join(names[:3]) or 'all'} is not finite", moment, ids))


def _bad_batch(what: str, moment: tuple[int, int], ids: Tensor) -> str:
    (step, epoch), shown = moment, ", ".join(str(number) for number in ids[:8].tolist())
    return (
        f"{what} in step {step + 1}, epoch {epoch + 1}, in the batch of images {shown}, …; no parameter was moved, the "
        "last checkpoint is good. Try a lower optimizer.learning_rate or a higher temperature."
    )
