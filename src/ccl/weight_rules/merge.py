"""Merge: after a step its weights meet those from before it half-way. CoMA (Marouf et al., ECCV 2024)."""

import torch
from torch import Tensor

from ccl.encoders import Encoder, MomentumEncoder
from ccl.part import WeightRule
from ccl.section import Fraction, Section


class Merge(WeightRule):
    """θ ← (1 − share) θ_before + share θ_after, from the second step on; the next step begins with the outcome.

    Where the encoder starts from weights that know something (`has_start`), in the first step too. Backbone and head
    are merged; what the objective owns (a predictor, a key encoder, a queue) stays as it was trained.
    """

    has_past: Tensor  # (): whether `before` is of an earlier step

    class Options(Section):
        share: Fraction = 0.5  # of the new weights; 1: as without the rule

    def __init__(self, encoder: Encoder, options: Options = Options(), *, has_start: bool = False) -> None:
        super().__init__()
        self.share = options.share
        self.has_start = has_start
        self.before = MomentumEncoder(encoder, momentum=1.0)
        self.register_buffer("has_past", torch.tensor(False))

    @property
    def moves_weights(self) -> bool:
        return self.share < 1.0 and bool(self.has_past)

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.before.reset(encoder)
        self.has_past.fill_(step > 0 or self.has_start)

    @torch.no_grad()
    def end_step(self, encoder: Encoder) -> None:
        if not self.moves_weights:
            return
        before = self.before.copy.state_dict()
        for name, after in encoder.state_dict().items():  # these share the encoder's memory
            if after.is_floating_point():
                after.mul_(self.share).add_(before[name], alpha=1.0 - self.share)
