"""A predictor turns present embeddings into those of the encoder at the step's beginning. CaSSLe and PFR."""

from typing import Literal

from torch import Tensor

from ccl.encoders import Embedded, Encoder, MomentumEncoder
from ccl.part import BatchContext, Retention
from ccl.retention.chosen_images import Images, choose
from ccl.retention.past_distance import Distance, compares_directions, own_distance, own_weight, past_distance
from ccl.retention.predictor import Predictor


class PredictiveDistillation(Retention):
    """Every view that the student saw is predicted as a frozen copy saw it. Fini et al., CVPR 2022 (arXiv 2112.04215).

    In the projection's space this is CaSSLe, and `distance` None is the objective's own kind of loss; in the features'
    space it is PFR (Gomez-Villa et al., CVPRW 2022), and None is the cosine. `images` says which images of a batch
    count.

    With `relative` the loss is multiplied by the images of earlier steps for each new one: a poor past weighs little.

    A predictor that restarts with random weights first pushes the encoder about until it has learned; one that begins
    each step as the identity asks for nothing but what the encoder has, from the first update on.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        temperature: float,
        objective_distance: str = "",
        objective_weight: float | None = None,
        seed: int = 0,
        space: Literal["projection", "features"] = "projection",
        distance: Distance | None = None,
        images: Images = "all",
        hidden: int = 512,
        predictor: Literal["keep", "restart", "identity"] = "keep",
        relative: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.seed = seed
        self.space = space
        self.distance = own_distance(distance, objective_distance if space == "projection" else "cosine")
        self.weight = own_weight(self.distance, objective_distance, objective_weight)
        self.images = images
        self.relative = relative
        self.restarts = predictor != "keep"
        # Differs: the authors' frozen copy is left in training mode and normalises with the new step's batches; and the
        # temperature of their InfoNCE is 0.2, here the run's.
        self.teacher = MomentumEncoder(encoder, momentum=1.0)
        # Differs: the authors distil both views; here those that the objective has the student embed, which of MoCo v2
        # is the first alone, unless `moco_v2.symmetric`. They also divide the predictor's rate by a weight below 1.
        dim = encoder.dim if space == "projection" else encoder.num_features
        self.predictor = Predictor(dim, hidden, shortcut=predictor == "identity")

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.teacher.reset(encoder)
        if self.restarts and step > 0:
            self.predictor.restart(self.seed, "predictive distillation", step)

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose(context, self.images)
        if chosen is None:
            return None
        predicted = [self.predictor(self._space(view))[chosen.rows] for view in context.student]  # (M, D) each
        past = [self._space(view) for view in chosen.past(self.teacher, context)]  # (M, D) each
        everyone = chosen.everywhere(*predicted, *past)
        predicted, past = everyone[: len(past)], everyone[len(past) :]  # (M of all ranks, D) each
        loss = past_distance(self.distance, predicted, past, self.temperature, self.weight)
        # Nobody knows how many images weights to start from have seen: they count as many as are new.
        return loss * (context.past_per_new or 1.0) if self.relative else loss

    def _space(self, view: Embedded) -> Tensor:
        """The rows that are predicted and predicted from."""
        if self.space == "features":
            return view.features
        # Differs: the authors give MoCo's predictor unit rows, and that of SimCLR and BYOL raw projections.
        return view.unit if compares_directions(self.distance) else view.projection
