"""VICReg: views agree, every dimension varies over the batch, and no two dimensions vary together."""

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import vicreg
from ccl.part import Contrast, Objective
from ccl.views import ViewBatch


class VICReg(Objective):
    """No negatives and no parameters of its own (Bardes, Ponce and LeCun, ICLR 2022)."""

    def __init__(self, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> None:
        super().__init__()
        self.invariance = invariance
        self.variance = variance
        self.covariance = covariance

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = student
        # Variances are those over all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = ranks.gather_together([view.projection for view in student])  # (N of all ranks, D) each
        loss = vicreg(everyone[0], everyone[1], self.invariance, self.variance, self.covariance)
        return Contrast(loss, first.unit, ((first.unit, second.unit), (second.unit, first.unit)), second.unit.detach())
