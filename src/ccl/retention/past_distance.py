"""How far predictions are from the past, in the objective's own kind of loss: all of CaSSLe's distances."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ccl.losses import barlow_twins, cosine_distance, cross_info_nce, feature_distance

Distance = Literal["cosine", "info_nce", "barlow", "mse"]

# What CaSSLe multiplies each with: the published Barlow Twins' scale and VICReg's weight of its squared error.
PUBLISHED: dict[Distance, float] = {"cosine": 1.0, "info_nce": 1.0, "barlow": 0.1, "mse": 25.0}
_UNIT = ("cosine", "info_nce")  # distances of directions


def own_distance(asked: Distance | None, of_objective: str) -> Distance:
    """The distance asked for, or the objective's own; where it has none, the cosine."""
    known: dict[str, Distance] = {"info_nce": "info_nce", "barlow": "barlow", "mse": "mse"}
    return asked or known.get(of_objective, "cosine")


def own_weight(distance: Distance, of_objective: str, objective_weight: float | None) -> float:
    """What a distance is multiplied with: as the objective does with its own of this kind, else as published.

    So a weight of 1 is CaSSLe's beside every objective, also where that is scaled for plain SGD.
    """
    return PUBLISHED[distance] if objective_weight is None or distance != of_objective else objective_weight


def compares_directions(distance: Distance) -> bool:
    """Whether embeddings of unit norm are compared, not raw projections."""
    return distance in _UNIT


def past_distance(
    distance: Distance, predicted: Sequence[Tensor], past: Sequence[Tensor], temperature: float, weight: float = 1.0
) -> Tensor:
    """How far predictions of each view, (N, D), are from what the past made of the same view; mean over the views.

    InfoNCE takes the rows of all views together, so that the other view of an image is a negative.
    """
    if distance == "info_nce":
        return weight * cross_info_nce(torch.cat(list(predicted)), torch.cat(list(past)), temperature)
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cosine": cosine_distance,
        "barlow": partial(barlow_twins, scale=1.0),
        "mse": feature_distance,
    }
    pairs = zip(predicted, past, strict=True)
    return weight * torch.stack([measures[distance](mine, theirs) for mine, theirs in pairs]).mean()
