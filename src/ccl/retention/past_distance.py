"""How far predictions are from the past, in the objective's own kind of loss: all of CaSSLe's distances."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ccl.losses import barlow_twins, cosine_distance, cross_info_nce, feature_distance

Distance = Literal["cosine", "info_nce", "barlow", "mse"]

INVARIANCE = 25.0  # VICReg's weight of its squared error: with it CaSSLe's weight is 1 for every distance
_UNIT = ("cosine", "info_nce")  # distances of directions


def own_distance(asked: Distance | None, of_objective: str) -> Distance:
    """The distance asked for, or the objective's own; where it has none, the cosine."""
    known: dict[str, Distance] = {"info_nce": "info_nce", "barlow": "barlow", "mse": "mse"}
    return asked or known.get(of_objective, "cosine")


def compares_directions(distance: Distance) -> bool:
    """Whether embeddings of unit norm are compared, not raw projections."""
    return distance in _UNIT


def past_distance(
    distance: Distance, predicted: Sequence[Tensor], past: Sequence[Tensor], temperature: float
) -> Tensor:
    """How far predictions of each view, (N, D), are from what the past made of the same view; mean over the views.

    InfoNCE takes the rows of all views together, so that the other view of an image is a negative.
    """
    if distance == "info_nce":
        return cross_info_nce(torch.cat(list(predicted)), torch.cat(list(past)), temperature)
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cosine": cosine_distance,
        "barlow": barlow_twins,
        "mse": _squared,
    }
    pairs = zip(predicted, past, strict=True)
    return torch.stack([measures[distance](mine, theirs) for mine, theirs in pairs]).mean()


def _squared(predicted: Tensor, past: Tensor) -> Tensor:
    return INVARIANCE * feature_distance(predicted, past)
