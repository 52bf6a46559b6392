"""Shared by parts that keep the past: the images that count, a predictor, and CaSSLe's distances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccl import ranks
from ccl.encoders import Embedded, MomentumEncoder
from ccl.losses import barlow_twins, cosine_distance, cross_info_nce, feature_distance
from ccl.part import BatchContext
from ccl.seeding import seeded

Images = Literal["all", "new", "old"]
Distance = Literal["cosine", "info_nce", "barlow", "mse"]

# What CaSSLe multiplies each with: the published Barlow Twins' scale and VICReg's weight of its squared error.
PUBLISHED: dict[Distance, float] = {"cosine": 1.0, "info_nce": 1.0, "barlow": 0.1, "mse": 25.0}
OF_DIRECTIONS = ("cosine", "info_nce")  # these compare embeddings of unit norm, the others raw projections


@dataclass(frozen=True)
class Chosen:
    """M of this rank's images."""

    rows: Tensor  # (M,): which of this rank's rows, on the device of embeddings
    mask: Tensor  # (N of all ranks,): which images of all ranks
    stored: Tensor | None = None  # (M of all ranks, D): vectors kept beside them, if these were asked for

    def everywhere(self, *several: Tensor) -> list[Tensor]:
        """Rows (M, ·) of this rank's chosen images, of all ranks, in the batch's order, in one message."""
        return ranks.gather_together(several, self.mask)

    def past(self, teacher: MomentumEncoder, context: BatchContext) -> list[Embedded]:
        """Embeddings by a copy of this rank's chosen images, in each view that the student saw, M rows each."""
        shown = [view[self.rows] for view in context.batch.views[: len(context.student)]]
        return teacher.embed(torch.cat(shown)).split([len(view) for view in shown])


def choose(context: BatchContext, images: Images) -> Chosen | None:
    """These images; None, on all ranks alike, where all together have fewer than two."""
    old = context.all_old
    mask = {"all": torch.ones_like(old), "old": old, "new": ~old}[images]
    return Chosen(_own_rows(mask, context), mask) if int(mask.sum()) >= 2 else None


def choose_stored(context: BatchContext, kind: str) -> Chosen | None:
    """The old images that have a stored vector of this kind, and these vectors; None where there are none."""
    stored = context.stored.get(kind)
    if stored is None:  # the memory is the same on all ranks
        return None
    known = ~stored.isnan().any(dim=1)  # (old,): a memory may be older than the wish for vectors
    mask = context.all_old.clone()
    mask[context.all_old] = known
    rows = _own_rows(mask, context)
    return Chosen(rows, mask, stored[known].to(rows.device)) if known.any() else None


def _own_rows(mask: Tensor, context: BatchContext) -> Tensor:
    return ranks.own(mask).nonzero().flatten().to(context.contrast.query.device)


class Predictor(nn.Module):
    """Linear, batch norm, ReLU, linear: (N, D) to (N, D). With a `shortcut` beside them it begins as the identity."""

    def __init__(self, dim: int, hidden: int, shortcut: bool = False) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.first = nn.Linear(dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)  # split in groups where the encoder's are
        self.last = nn.Linear(hidden, dim)
        self._begin()

    def forward(self, rows: Tensor) -> Tensor:
        wide: Tensor = self.first(rows)  # (N, hidden)
        num_groups = getattr(self.norm, "num_groups", 1)
        if len(rows) >= 2 * num_groups or not self.training:
            wide = self.norm(wide)
        else:  # one row to a group has no statistics of its own: such a small batch has the running ones
            norm = self.norm
            wide = F.batch_norm(wide, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        predicted: Tensor = self.last(F.relu(wide))
        return rows + predicted if self.shortcut else predicted

    def restart(self, *context: int | str) -> None:
        """Initialise again, with weights that are a pure function of the context."""
        with seeded(*context):
            for layer in (self.first, self.norm, self.last):
                layer.reset_parameters()
        self._begin()

    def _begin(self) -> None:
        if self.shortcut:
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)


def own_distance(asked: Distance | None, of_objective: str) -> Distance:
    """The distance asked for, or the objective's own; where it has none, the cosine."""
    known: dict[str, Distance] = {"info_nce": "info_nce", "barlow": "barlow", "mse": "mse"}
    return asked or known.get(of_objective, "cosine")


def own_weight(distance: Distance, of_objective: str, objective_weight: float | None) -> float:
    """The factor of a distance: the objective's own for this kind, else as published."""
    return PUBLISHED[distance] if objective_weight is None or distance != of_objective else objective_weight


def past_distance(
    distance: Distance, predicted: Sequence[Tensor], past: Sequence[Tensor], temperature: float, weight: float = 1.0
) -> Tensor:
    """How far predictions of each view, (N, D), are from what the past made of the same view; mean over the views."""
    if distance == "info_nce":  # of the rows of all views together: the other view of an image is a negative
        return weight * cross_info_nce(torch.cat(list(predicted)), torch.cat(list(past)), temperature)
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cosine": cosine_distance,
        "barlow": partial(barlow_twins, scale=1.0),
        "mse": feature_distance,
    }
    pairs = zip(predicted, past, strict=True)
    return weight * torch.stack([measures[distance](mine, theirs) for mine, theirs in pairs]).mean()
