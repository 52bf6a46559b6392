"""Average: a moving average of the student's weights is probed and exported; the student learns unchanged."""

from typing import cast

import torch
from torch import Tensor

from ccl.encoders import Encoder, MomentumEncoder
from ccl.part import BatchContext, WeightRule
from ccl.section import Fraction, Section


class Average(WeightRule):
    """θ̄ ← m θ̄ + (1 − m) θ at every update, with m = min(momentum, 1 − 1/n) at the n-th update of the stream.

    Mean Teacher's weights (NeurIPS 2017), used for evaluation as in Soutif-Cormerais et al., CoLLAs 2023.
    """

    num_updates: Tensor  # ()

    class Options(Section):
        momentum: Fraction = 0.999  # the mean of all updates so far, until these are as many as it remembers

    def __init__(self, encoder: Encoder, options: Options = Options()) -> None:
        super().__init__()
        self.momentum = options.momentum
        self.average = MomentumEncoder(encoder, options.momentum)
        self.register_buffer("num_updates", torch.tensor(0))

    @property
    def moves_weights(self) -> bool:
        return True  # no batch has ever passed through the average

    def product(self, encoder: Encoder) -> Encoder:
        return cast(Encoder, self.average.copy)

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.num_updates += 1
        self.average.follow(encoder, min(self.momentum, 1.0 - 1.0 / int(self.num_updates)))
