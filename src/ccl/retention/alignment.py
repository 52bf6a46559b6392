"""An aligner turns present embeddings of old images into those of a slow copy. CLA."""

from typing import Literal

import torch
from torch import Tensor

from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import cosine_distance
from ccl.part import BatchContext, Retention
from ccl.retention.past import Predictor, choose, choose_stored
from ccl.section import Count, Fraction, Section


class Alignment(Retention):
    """1 − cos of what the aligner predicts and the past embedding. Cignoni et al., CoLLAs 2025.

    The past is a copy that follows the student after every update (`target` "average": CLA-E), or the embedding that
    the memory kept beside the image ("stored": CLA-R). It is asked of old images only, or of "all" (CLA-b).
    """

    class Options(Section):
        momentum: Fraction = 0.999  # of the average, per update
        hidden: Count = 512  # units of the aligner
        images: Literal["old", "all"] = "old"  # all: CLA-b
        target: Literal["average", "stored"] = "average"  # CLA-E, CLA-R

    def __init__(self, encoder: Encoder, options: Options = Options()) -> None:
        super().__init__()
        self.images = options.images
        # Differs: the authors store the mean over views and refresh it whenever its image is replayed; here it is the
        # plain image's and stays as it was when the image was kept.
        self.average = None if options.target == "stored" else MomentumEncoder(encoder, options.momentum)
        self.stores = frozenset({"embeddings"}) if options.target == "stored" else frozenset()
        # Differs: the authors' aligner sees raw projections of replayed images only, and its first layer has no bias,
        # which batch norm takes away again. Here it reads unit rows of the whole batch.
        self.aligner = Predictor(encoder.dim, options.hidden)

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        if step == 0 and self.average is not None:
            self.average.reset(encoder)

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose_stored(context, "embeddings") if self.average is None else choose(context, self.images)
        if chosen is None:
            return None
        predicted = [self.aligner(view.unit)[chosen.rows] for view in context.student]  # (M, D) each
        past = [] if self.average is None else [view.unit for view in chosen.past(self.average, context)]
        everyone = chosen.everywhere(*predicted, *past)  # (M of all ranks, D) each
        targets = everyone[len(predicted) :] if chosen.stored is None else [chosen.stored] * len(predicted)
        pairs = zip(everyone[: len(predicted)], targets, strict=True)
        # Half of 2 − 2cos: the gradient of the published −cos.
        return torch.stack([cosine_distance(*pair) / 2 for pair in pairs]).mean()

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        if self.average is not None:
            self.average.follow(encoder)
