"""SimCLR: two views of an image against all other views of the batch."""

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import nt_xent
from ccl.part import Contrast, Objective
from ccl.views import ViewBatch


class SimCLR(Objective):
    """No key encoder and no queue: negatives are the batch's own, and both views carry gradient."""

    def __init__(self, *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = (view.unit for view in student)  # (N, D), (N, D)
        # Negatives are those of all ranks: each computes the whole batch's loss, with its own rows' gradient.
        everyone = ranks.gather_together([first, second])  # (N of all ranks, D) each
        loss = nt_xent(everyone[0], everyone[1], self.temperature)
        all_keys = everyone[1].detach()
        return Contrast(loss, first, ((first, second), (second, first)), second.detach(), all_keys=all_keys)
