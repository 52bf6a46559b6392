"""SimSiam: a predictor turns each view into the other, which gets no gradient."""

import torch
import torch.nn.functional as F

from ccl.encoders import Embedded, Encoder, make_head
from ccl.losses import cosine_distance
from ccl.part import Contrast, Objective
from ccl.section import Count, Section
from ccl.views import ViewBatch


class SimSiam(Objective):
    """No negatives and no momentum copy (Chen and He, CVPR 2021), only a predictor and a stopped gradient."""

    constant_rate = ("predictor",)  # SimSiam: §4.2, "fixed lr" of the prediction head

    class Options(Section):
        predictor_width: Count | None = None  # of the hidden layer; None: a quarter of encoder.dim, as in SimSiam

    def __init__(self, dim: int, options: Options = Options()) -> None:
        super().__init__()
        self.predictor = make_head("mlp_bn", dim, dim, options.predictor_width or max(dim // 4, 1))

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        first, second = student
        # Differs: published code normalises each view by its own statistics; here, as in the student's one forward,
        # both views of a batch have theirs in common.
        guesses = self.predictor(torch.cat([first.projection, second.projection])).chunk(2)  # (N, D) each
        targets = (second.unit.detach(), first.unit.detach())
        distance = cosine_distance(guesses[0], targets[0]) + cosine_distance(guesses[1], targets[1])
        pairs = tuple((F.normalize(guess, dim=1), target) for guess, target in zip(guesses, targets, strict=True))
        # SimSiam: eq. 2, the mean of both views' −cos, which is half of a distance, less 1.
        return Contrast(distance / 4.0 - 1.0, first.unit, pairs, second.unit.detach())
