"""A copy of an encoder that follows it slowly and never learns by itself."""

import copy
import math
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ccl.encoders.encoder import Embedded, Encoder


class MomentumEncoder(nn.Module):
    """θ ← m θ + (1 − m) θ_source, for parameters and buffers alike. Paper: eqs. 2 and 4.

    No gradient ever enters it, and `train()` changes nothing: a teacher always evaluates, and MoCo's key encoder always
    normalises with the batch's own statistics (`batch_statistics`).

    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> teacher = ccl.encoders.MomentumEncoder(network, momentum=0.75)
    >>> _ = torch.nn.init.constant_(teacher.copy.weight, 0.0), torch.nn.init.constant_(network.weight, 1.0)
    >>> teacher.follow(network)
    >>> teacher.copy.weight.item()
    0.25
    """

    def __init__(self, source: nn.Module, momentum: float, batch_statistics: bool = False) -> None:
        super().__init__()
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"momentum must lie in [0, 1], got {momentum}")
        self.momentum = momentum
        self.batch_statistics = batch_statistics
        self.copy = copy.deepcopy(source).requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        self.training = False
        self.copy.train(self.batch_statistics)
        return self

    @torch.no_grad()
    def follow(self, source: nn.Module, momentum: float | None = None) -> None:
        """Move a share 1 − momentum of the way to the source, None: its own momentum; counters are copied."""
        pairs = _pairs(self.copy, source)
        numbers = [(mine, theirs) for mine, theirs in pairs if mine.is_floating_point()]
        # One call for all tensors: a small network has many, and each call of its own costs more than its arithmetic.
        move = get_ema_multi_avg_fn(self.momentum if momentum is None else momentum)  # type: ignore[no-untyped-call]
        move([mine for mine, _ in numbers], [theirs for _, theirs in numbers], 0)
        for mine, theirs in pairs:
            if not mine.is_floating_point():
                mine.copy_(theirs)

    @torch.no_grad()
    def reset(self, source: nn.Module) -> None:
        """Copy the source's parameters and buffers."""
        # Differs: the authors' code copies parameters only, so that its teacher keeps stale batch statistics.
        for mine, theirs in _pairs(self.copy, source):
            mine.copy_(theirs)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.copy(images))

    @torch.no_grad()
    def embed(self, images: Tensor) -> Embedded:
        """Features, raw projections and unit embeddings; the source must be an `Encoder`."""
        return cast(Encoder, self.copy).embed(images)


def rising_momentum(first: float, last: float, done: float) -> float:
    """From the first to the last by a cosine over a step, at this share of its updates: BYOL's schedule."""
    return last - (last - first) * (math.cos(math.pi * done) + 1.0) / 2.0


def _pairs(copied: nn.Module, source: nn.Module) -> list[tuple[Tensor, Tensor]]:
    mine, theirs = copied.state_dict(keep_vars=True), source.state_dict(keep_vars=True)
    return [(mine[name].data, theirs[name].data) for name in mine]
