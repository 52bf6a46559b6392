"""What a part that keeps the past gets to see of a batch, and what every such part offers."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from ccl.objectives import Contrast
from ccl.views import ViewBatch


@dataclass(frozen=True)
class BatchContext:
    """One batch after the student has embedded it. N images, M of them old."""

    batch: ViewBatch
    is_old: Tensor  # (N,) bool
    has_past: bool  # False in the first step
    contrast: Contrast
    plain: Tensor  # (M, 3, S, S): the old images without augmentation, if a part asked for them
    student_plain: Tensor  # (M, D): the student's embeddings of these


class Retention(Protocol):
    """Keep the past. One file each; all state in `state_dict`."""

    name: str  # of its loss
    plain_images: Literal["none", "old", "batch"]  # which plain images the student must embed for it

    def begin_step(self, encoder: nn.Module) -> None:
        """A step begins."""
        ...

    def loss(self, context: BatchContext) -> Tensor | None:
        """Its loss for this batch, or None where it has nothing to say; called from the second step on."""
        ...

    def after_update(self, context: BatchContext) -> None:
        """The student has moved; called in every step."""
        ...

    def end_epoch(self, encoder: nn.Module) -> None:
        """An epoch has ended."""
        ...
