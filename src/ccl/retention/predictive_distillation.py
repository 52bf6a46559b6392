"""A predictor turns present embeddings into those of the encoder at the step's beginning. CaSSLe and PFR."""

from typing import Literal

from torch import Tensor

from ccl.encoders import Embedded, Encoder, MomentumEncoder
from ccl.part import BatchContext, Retention
from ccl.retention.past import (
    OF_DIRECTIONS,
    Distance,
    Images,
    Predictor,
    choose,
    own_distance,
    own_weight,
    past_distance,
)
from ccl.section import Count, Section


class PredictiveDistillation(Retention):
    """Every view that the student saw is predicted as a frozen copy saw it. Fini et al., CVPR 2022 (arXiv 2112.04215).

    In the projection's space this is CaSSLe, and `distance` None is the objective's own kind of loss; in the features'
    space it is PFR (Gomez-Villa et al., CVPRW 2022), and None is the cosine.
    """

    class Options(Section):
        space: Literal["projection", "features"] = "projection"  # features: PFR
        distance: Distance | None = None  # None: the objective's; of features: cosine
        images: Images = "all"  # which images are distilled
        hidden: Count = 512  # authors' code: 2048; PFR's: 256
        # Over steps: it stays as it is, begins anew with random weights, or begins anew as the identity, by a shortcut
        predictor: Literal["keep", "restart", "identity"] = "keep"
        relative: bool = False  # times the images of earlier steps for each new one

    def __init__(
        self,
        encoder: Encoder,
        options: Options = Options(),
        *,
        temperature: float,
        objective_distance: str = "",
        objective_weight: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.options = options
        self.temperature = temperature
        self.seed = seed
        is_projection = options.space == "projection"
        self.distance = own_distance(options.distance, objective_distance if is_projection else "cosine")
        self.weight = own_weight(self.distance, objective_distance, objective_weight)
        # Differs: the authors' frozen copy is left in training mode and normalises with the new step's batches; and the
        # temperature of their InfoNCE is 0.2, here the run's.
        self.teacher = MomentumEncoder(encoder, momentum=1.0)
        # Differs: the authors distil both views; here those that the objective has the student embed, which of MoCo v2
        # is the first alone, unless `moco_v2.symmetric`. They also divide the predictor's rate by a weight below 1.
        dim = encoder.dim if is_projection else encoder.num_features
        self.predictor = Predictor(dim, options.hidden, shortcut=options.predictor == "identity")

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.teacher.reset(encoder)
        if self.options.predictor != "keep" and step > 0:
            self.predictor.restart(self.seed, "predictive distillation", step)

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose(context, self.options.images)
        if chosen is None:
            return None
        predicted = [self.predictor(self._space(view))[chosen.rows] for view in context.student]  # (M, D) each
        past = [self._space(view) for view in chosen.past(self.teacher, context)]  # (M, D) each
        everyone = chosen.everywhere(*predicted, *past)
        predicted, past = everyone[: len(past)], everyone[len(past) :]  # (M of all ranks, D) each
        loss = past_distance(self.distance, predicted, past, self.temperature, self.weight)
        # Nobody knows how many images weights to start from have seen: they count as many as are new.
        return loss * (context.past_per_new or 1.0) if self.options.relative else loss

    def _space(self, view: Embedded) -> Tensor:
        """The rows that are predicted and predicted from."""
        if self.options.space == "features":
            return view.features
        # Differs: the authors give MoCo's predictor unit rows, and that of SimCLR and BYOL raw projections.
        return view.unit if self.distance in OF_DIRECTIONS else view.projection
