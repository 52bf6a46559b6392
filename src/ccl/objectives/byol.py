"""BYOL: a predictor turns each view into what a slow copy of the encoder makes of the other view."""

import torch
import torch.nn.functional as F

from ccl.encoders import Embedded, Encoder, MomentumEncoder, make_head
from ccl.encoders.momentum_encoder import rising_momentum
from ccl.losses import cosine_distance
from ccl.part import BatchContext, Contrast, Objective
from ccl.section import Count, Fraction, Section
from ccl.views import ViewBatch


class BYOL(Objective):
    """No negatives (Grill et al., NeurIPS 2020). Target and predictor carry over from step to step."""

    class Options(Section):
        predictor_width: Count = 1024  # of the hidden layer; BYOL: 4096
        momentum: Fraction = 0.99  # of the target in a step's first update
        final_momentum: Fraction = 1.0  # and in its last, by a cosine; lightly's recipe for small machines: 0.99

    def __init__(self, encoder: Encoder, options: Options = Options()) -> None:
        super().__init__()
        self.options = options
        self.target = MomentumEncoder(encoder, options.momentum, batch_statistics=True)
        self.predictor = make_head("mlp_bn", encoder.dim, encoder.dim, options.predictor_width)

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        # Differs: published code normalises each view by its own statistics; here, as in the student's one forward,
        # both views of a batch have theirs in common.
        guesses = self.predictor(torch.cat([view.projection for view in student])).chunk(2)  # (N, D) each
        targets = self.target.embed(torch.cat(batch.views[:2])).unit.chunk(2)[::-1]  # (N, D): of the other view
        # BYOL: eq. 2, and once more with the views swapped.
        loss = cosine_distance(guesses[0], targets[0]) + cosine_distance(guesses[1], targets[1])
        pairs = tuple((F.normalize(guess, dim=1), target) for guess, target in zip(guesses, targets, strict=True))
        return Contrast(loss, student[0].unit, pairs, student[1].unit.detach())

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.target.follow(encoder, rising_momentum(self.target.momentum, self.options.final_momentum, context.done))
