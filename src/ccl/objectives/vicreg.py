"""VICReg: views agree, every dimension varies over the batch, and no two dimensions vary together."""

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import vicreg
from ccl.part import Contrast, Objective
from ccl.section import Section, Weight
from ccl.views import ViewBatch


class VICReg(Objective):
    """No negatives and no parameters of its own (Bardes, Ponce and LeCun, ICLR 2022)."""

    class Options(Section):
        # Published with LARS: 25, 25 and 1, where plain SGD takes too large steps. The proportion is the same.
        invariance: Weight = 5.0
        variance: Weight = 5.0  # the weight of the spread that each dimension must have
        covariance: Weight = 0.2  # the weight of correlations between dimensions

    def __init__(self, options: Options = Options()) -> None:
        super().__init__()
        self.options = options

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = student
        # Variances are those over all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = ranks.gather_together([view.projection for view in student])  # (N of all ranks, D) each
        weights = self.options.invariance, self.options.variance, self.options.covariance
        loss = vicreg(everyone[0], everyone[1], *weights)
        return Contrast(loss, first.unit, ((first.unit, second.unit), (second.unit, first.unit)), second.unit.detach())
