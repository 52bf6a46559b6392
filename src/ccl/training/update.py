"""One update of a learner: losses, gradients and their mean over ranks, the optimizer's step."""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.training.learner import Learner
from ccl.views import ViewBatch


class NotFiniteError(ArithmeticError):
    """A loss or gradient became nan or infinite; nothing was updated with it."""


def update(
    learner: Learner, batch: ViewBatch, optimizer: torch.optim.Optimizer, moment: tuple[int, int], done: float = 0.0
) -> dict[str, float]:
    """Learn from this rank's share of a batch at (step, epoch), `done` of the step; each term's loss by its name."""
    losses, context = learner.losses(batch, moment, done)  # L_contrast, L_ESQ, L_kd
    total = learner.total(losses)
    optimizer.zero_grad(set_to_none=True)
    scaler = learner.scaler  # float16 only
    sync = GradientSync(learner)
    torch.autograd.backward(scaler.scaled(total) if scaler else total)
    means = torch.stack([loss.detach().float() for loss in losses.values()])  # (terms,)
    sync.finish(means)  # of all ranks from here on
    values = dict(zip(losses, means.tolist(), strict=True))
    for name, value in values.items():
        if not math.isfinite(value):
            raise NotFiniteError(_bad_batch(f"the loss {name!r} is {value}", moment, batch.ids))
    if scaler is None or scaler.unscale(optimizer):
        _refuse_bad_gradients(learner, optimizer, moment, batch.ids)
        optimizer.step()
    learner.after_update(context)  # θ_k follows θ_q; Q and ESQ take their keys
    return values


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


class GradientSync:
    """Averages gradients over ranks, from the last layers on while the backward pass is at the first ones.

    Buckets are the same in every update, and all ranks send them in the same order: so a sum over ranks rounds alike in
    an unbroken run and in a resumed one. What fills no bucket travels at the end.
    """

    bucket_bytes = 25 * 2**20  # large enough for full bandwidth, small enough for a ResNet-50 to have three and a rest

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        encoder = (parameter for parameter in learner.encoder.parameters() if parameter.requires_grad)
        self.buckets = self._full_buckets(encoder) if ranks.size() > 1 else []
        self.sent: list[Callable[[], None]] = []  # what waits for the end of each message
        self._num_missing = [len(bucket) for bucket in self.buckets]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self.buckets)
            for parameter in bucket
        ]

    def _arrived(self, number: int, parameter: Tensor) -> None:
        """A gradient of a bucket is complete: send what is due."""
        self._num_missing[number] -= 1
        while len(self.sent) < len(self.buckets) and not self._num_missing[len(self.sent)]:
            self._send(self.buckets[len(self.sent)])

    def _send(self, parameters: Iterable[nn.Parameter], *others: Tensor) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.sent.append(ranks.begin_average([*gradients, *others]))

    def finish(self, losses: Tensor) -> None:
        """Average, in place, gradients, the losses (terms,), and statistics, of which each rank has its own groups'."""
        for hook in self._hooks:
            hook.remove()
        if ranks.size() == 1:
            return
        trained = list(self.learner.trained_parameters().values())
        # A part may have found nothing to do on this rank and something on another, and all must send the same.
        moved = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=losses.device)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for bucket in self.buckets[len(self.sent) :]:
            self._send(bucket)
        in_buckets = {id(parameter) for bucket in self.buckets for parameter in bucket}
        rest = (parameter for parameter in trained if id(parameter) not in in_buckets)
        self._send(rest, *self.learner.running_statistics(), losses, moved)
        for wait in self.sent:
            wait()
        for parameter, share in zip(trained, moved.tolist(), strict=True):
            parameter.grad = parameter.grad if share else None

    def _full_buckets(self, parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
        """From the last to the first, as their gradients come, in buckets; those that fill none are left out."""
        full, bucket, num_bytes = list[list[nn.Parameter]](), list[nn.Parameter](), 0
        for parameter in reversed(list(parameters)):
            bucket.append(parameter)
            num_bytes += 4 * parameter.numel()
            if num_bytes >= self.bucket_bytes:
                full.append(bucket)
                bucket, num_bytes = [], 0
        return full
