"""How a step is learned: how long, in which batches, with which optimizer, and how its learning rate moves."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ccl.training.lars import LARS


@dataclass(frozen=True)
class Plan:
    """The optimizer and its schedule, which restarts at every step."""

    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: Literal["sgd", "lars", "adamw"] = "sgd"
    momentum: float = 0.9  # AdamW: its first beta
    beta2: float = 0.999  # AdamW only
    trust: float = 0.02  # LARS only: the trust coefficient
    weight_decay: float = 0.0
    decay_norms: bool = True  # False: no weight decay on biases and batch norm
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: int = 0  # over which the learning rate rises linearly, update by update
    carry_momentum: bool = False
    batch_multiple: int = 1  # every batch is a multiple of this: the groups of split batch norm
    seed: int = 0
    # What batch norms evaluate with after a step: what training gathered, or what the remembered images have.
    statistics: Literal["running", "remembered"] = "running"

    def make_optimizer(self, learner: nn.Module, previous: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
        """The optimizer of a new step over all that a learner trains: fresh, or the previous one, carried over."""
        # Differs: the authors' code carries momentum over; `carry_momentum` does that.
        if previous is not None and self.carry_momentum:
            return previous
        rate, decay = self.learning_rate, self.weight_decay
        groups = self._parameter_groups(learner)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, rate, betas=(self.momentum, self.beta2), weight_decay=decay)
        if self.optimizer == "lars":
            return LARS(groups, rate, momentum=self.momentum, weight_decay=decay, trust=self.trust)
        return torch.optim.SGD(groups, rate, momentum=self.momentum, weight_decay=decay)

    def _parameter_groups(self, learner: nn.Module) -> list[dict[str, object]]:
        """One group in the learner's order, or two where biases and norms, which have one dimension, don't decay."""
        trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        if self.decay_norms:
            return [{"params": trained}]
        flat = [parameter for parameter in trained if parameter.ndim < 2]
        others = [parameter for parameter in trained if parameter.ndim >= 2]
        return [{"params": others}, {"params": flat, "weight_decay": 0.0}]

    def learning_rate_at(self, epoch: int, share: float = 1.0) -> float:
        """The rate of the update with which `share` of an epoch, counted from 0, is done.

        The cosine moves epoch by epoch and ends one epoch before it would reach zero, as in MoCo.
        """
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch + share) / self.warmup_epochs
        if self.schedule == "constant":
            return self.learning_rate
        done = (epoch - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
