"""Barlow Twins: every dimension agrees over the two views and is uncorrelated with the others."""

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import barlow_twins
from ccl.part import Contrast, Objective
from ccl.views import ViewBatch


class BarlowTwins(Objective):
    """No negatives and no parameters of its own (Zbontar et al., ICML 2021)."""

    def __init__(self, *, off_diagonal: float = 5e-3, scale: float = 0.1) -> None:
        super().__init__()
        self.off_diagonal = off_diagonal
        self.scale = scale

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = student
        # Correlations are those over all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = ranks.gather_together([view.projection for view in student])  # (N of all ranks, D) each
        loss = barlow_twins(everyone[0], everyone[1], self.off_diagonal, self.scale)
        return Contrast(loss, first.unit, ((first.unit, second.unit), (second.unit, first.unit)), second.unit.detach())
