"""What an objective makes of a batch, and what every objective offers."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from ccl.views import ViewBatch


@dataclass(frozen=True)
class Contrast:
    """An objective's answer to one batch of N images; embeddings are unit rows."""

    loss: Tensor  # ()
    query: Tensor  # (N, D): the student's embeddings of the first view, with gradient
    pairs: tuple[tuple[Tensor, Tensor], ...]  # positive pairs (N, D), (N, D): extra negatives are contrasted with these
    keys: Tensor  # (N, D), detached: what a queue stores of this batch


class Objective(Protocol):
    """Learn the present. One file each; all state in `state_dict`."""

    num_views: int  # how many random views a batch brings
    num_student_views: int  # how many of them, the first ones, the student embeds
    temperature: float

    def begin_step(self, encoder: nn.Module, ids: Tensor, step: int) -> None:
        """A step begins; `ids` are the images of D_t and of the rehearsal memory."""
        ...

    def contrast(self, student: tuple[Tensor, ...], batch: ViewBatch, moment: tuple[int, int]) -> Contrast:
        """The loss of this batch, given the student's embeddings of its views; moment is (step, epoch)."""
        ...

    def after_update(self, encoder: nn.Module, contrast: Contrast, ids: Tensor) -> None:
        """The student has moved: let copies follow and queues take their keys."""
        ...
