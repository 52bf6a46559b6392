"""SimCLR: two views of an image against all other views of the batch."""

from torch import Tensor, nn

from ccl import ranks
from ccl.losses import nt_xent
from ccl.objectives.contrast import Contrast
from ccl.views import ViewBatch


class SimCLR(nn.Module):
    """No key encoder and no queue: negatives are the batch's own, and both views carry gradient."""

    num_views = 2
    num_student_views = 2

    def __init__(self, *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def begin_step(self, encoder: nn.Module, ids: Tensor, step: int) -> None:
        """Nothing to prepare."""

    def contrast(self, student: tuple[Tensor, ...], batch: ViewBatch, moment: tuple[int, int]) -> Contrast:
        first, second = student  # (N, D), (N, D)
        # Negatives are those of all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = (ranks.gather_with_gradient(first), ranks.gather_with_gradient(second))
        loss = nt_xent(*everyone, self.temperature)
        return Contrast(loss, first, ((first, second), (second, first)), second.detach())

    def after_update(self, encoder: nn.Module, contrast: Contrast, ids: Tensor) -> None:
        """Nothing to follow."""
