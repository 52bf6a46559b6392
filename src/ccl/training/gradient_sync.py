"""Gradients become their mean over ranks, those of the last layers while the backward pass is at the first ones."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.training.learner import Learner

BUCKET_BYTES = 25 * 2**20  # large enough for full bandwidth, small enough for a ResNet-50 to have three and a rest


class GradientSync:
    """Made before a backward pass, finished after it; in one process it does nothing.

    Buckets are the same in every update, and all ranks send them in the same order, whichever is ready first: a sum
    over ranks then rounds alike in an unbroken run and in a resumed one. What the backward pass comes to last travels
    with all else at the end, so that a small network needs one message.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        encoder = (parameter for parameter in learner.encoder.parameters() if parameter.requires_grad)
        self.buckets = _full_buckets(encoder) if ranks.size() > 1 else []
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


def _full_buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters from the last to the first, as their gradients come, in buckets; those that fill none are left out."""
    full, bucket, num_bytes = list[list[nn.Parameter]](), list[nn.Parameter](), 0
    for parameter in reversed(list(parameters)):
        bucket.append(parameter)
        num_bytes += 4 * parameter.numel()
        if num_bytes >= BUCKET_BYTES:
            full.append(bucket)
            bucket, num_bytes = [], 0
    return full
