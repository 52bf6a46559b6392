"""Barlow Twins: every dimension agrees over the two views and is uncorrelated with the others."""

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import barlow_twins
from ccl.part import Contrast, Objective
from ccl.section import Positive, Section, Weight
from ccl.views import ViewBatch


class BarlowTwins(Objective):
    """No negatives and no parameters of its own (Zbontar et al., ICML 2021)."""

    class Options(Section):
        off_diagonal: Weight = 5e-3  # the weight of correlations between dimensions
        scale: Positive = 0.02  # published with LARS: 0.1, where plain SGD takes too large steps

    def __init__(self, options: Options = Options()) -> None:
        super().__init__()
        self.options = options

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = student
        # Correlations are those over all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = ranks.gather_together([view.projection for view in student])  # (N of all ranks, D) each
        loss = barlow_twins(everyone[0], everyone[1], self.options.off_diagonal, self.options.scale)
        return Contrast(loss, first.unit, ((first.unit, second.unit), (second.unit, first.unit)), second.unit.detach())
