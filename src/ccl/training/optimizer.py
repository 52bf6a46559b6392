"""SGD whose learning rate falls along a cosine in every step, restarted at the next."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Plan:
    """How a step is learned: how long, in which batches, how fast."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "cosine"  # or "constant"
    carry_momentum: bool = False
    batch_multiple: int = 1  # every batch is a multiple of this: the groups of split batch norm
    seed: int = 0

    def optimizer(self, module: nn.Module, previous: torch.optim.SGD | None) -> torch.optim.SGD:
        """The optimizer of a new step: fresh, or the previous step's where momentum carries over."""
        # Differs: the authors' code carries momentum over; `carry_momentum` does that.
        if previous is not None and self.carry_momentum:
            return previous
        return torch.optim.SGD(
            module.parameters(), self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def learning_rate_at(self, epoch: int) -> float:
        """Epochs count from 0; the cosine ends one epoch before it would reach zero, as in MoCo."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))
