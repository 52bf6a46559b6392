"""The features of old images when they were kept, as targets. DER without labels."""

import torch
from torch import Tensor

from ccl.losses import feature_distance
from ccl.part import BatchContext, Retention
from ccl.retention.past import choose_stored


class StoredFeatures(Retention):
    """Squared error of old images' features to those stored beside them. arXiv 2004.07211, without labels as in UCL."""

    # Differs: the authors store features as they are in the middle of a step; here they are those of the step's end.
    # And the objective learns from old images too, which the authors call DER++.
    stores = frozenset({"features"})

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose_stored(context, "features")
        if chosen is None or chosen.stored is None:
            return None
        present = chosen.everywhere(*(view.features[chosen.rows] for view in context.student))  # (M, F) each
        return torch.stack([feature_distance(features, chosen.stored) for features in present]).mean()
