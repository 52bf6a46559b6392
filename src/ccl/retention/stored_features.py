"""The features of old images when they were kept, as targets. DER without labels."""

import torch
from torch import Tensor

from ccl.losses import feature_distance
from ccl.part import BatchContext, Retention
from ccl.retention.past import choose_stored


class StoredFeatures(Retention):
    """The squared error of the student's features of old images' views to those the memory keeps beside them.

    Buzzega et al., NeurIPS 2020 (arXiv 2004.07211), as Madaan et al., ICLR 2022, use it without labels.
    """

    # Differs: the authors store features as they are in the middle of a step; here they are those of the step's end.
    # And the objective learns from old images too, which the authors call DER++.
    stores = frozenset({"features"})

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose_stored(context, "features")
        if chosen is None or chosen.stored is None:
            return None
        present = chosen.everywhere(*(view.features[chosen.rows] for view in context.student))  # (M, F) each
        return torch.stack([feature_distance(features, chosen.stored) for features in present]).mean()
