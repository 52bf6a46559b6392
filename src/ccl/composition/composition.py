"""Base class of compositions: the batches of an epoch, and a hook that may mix old and new images."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl.data import epoch_batches
from ccl.views import ViewBatch


@dataclass(frozen=True)
class EpochBatch:
    """Which images a batch holds, by their positions in D_t ∪ S."""

    positions: Tensor  # (N,)
    turns: Tensor  # (N,): how often the image was seen in this epoch before; each turn has views of its own

    @classmethod
    def once(cls, positions: Tensor) -> "EpochBatch":
        """Images that are seen for the first time in their epoch."""
        return cls(positions, torch.zeros_like(positions))


class Composition(ABC):
    """How batches mix new and old images; a pure function of its arguments, without state."""

    is_mixed = False  # whether `mix` makes one image of a new and an old one

    @abstractmethod
    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        """The batches of an epoch over images `ids`, the first `num_new` of which are new and the others old.

        Each size is a multiple of `multiple`; the context is (seed, step, epoch).
        """

    def mix(self, batch: ViewBatch, num_new: int, moment: tuple[int, int]) -> ViewBatch:
        """The batch that the student sees; images at positions from `num_new` on are old, moment is (step, epoch)."""
        return batch


class Pooled(Composition):
    """Every image of D_t ∪ S once an epoch, in random order. Paper: §Rehearsal."""

    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        return [EpochBatch.once(part) for part in epoch_batches(ids, batch_size, *context, multiple=multiple)]
