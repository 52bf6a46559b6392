"""Changes by a step to known images, without labels: neighbours, groups, collapse, and recognition.

Rows before and after, and of two views, are of the same images in the same order; groups are any integers. Numbers are
nan where there is nothing to measure: fewer than two rows, or rows that aren't finite.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.evaluation.health import Health, alignment, effective_rank, uniformity

NUM_NEIGHBOURS = 10
_ENTRIES = 2**24  # of a similarity matrix held at one time
_DECIMALS = 9  # similarities that differ by less are equal: rounding must not choose neighbours
FEWEST_ROWS = 10  # fewer images say nothing
NOT_FINITE = "the features contain nan or infinity"


def neighbour_overlap(before: Tensor, after: Tensor, k: int = NUM_NEIGHBOURS) -> float:
    """Mean share, 0 to 1, of each row's k nearest others by cosine that stay the same: (N, F), (N, G) -> number."""
    if not (_is_measurable(before) and _is_measurable(after)):
        return math.nan
    k = min(k, len(before) - 1)
    kept = 0
    for then, now in zip(_neighbours(before, k), _neighbours(after, k), strict=True):  # (chunk, N) each
        kept += int((then & now).sum())
    return kept / (k * len(before))


def group_agreement(rows: Tensor, groups: Tensor, k: int = NUM_NEIGHBOURS) -> float:
    """How often the k nearest others of a row vote for its own group, in percent: (N, F), (N,) -> 0 to 100.

    A draw of m groups counts as 1/m. Rows that are alone in their group don't count; nan if all are.
    """
    numbers, sizes = _numbered(groups)
    has_others = sizes[numbers] > 1  # (N,)
    if not _is_measurable(rows) or not has_others.any():
        return math.nan
    right, start = torch.zeros(len(rows), dtype=torch.float64), 0
    for nearest in _neighbours(rows, min(k, len(rows) - 1)):  # (chunk, N)
        votes = torch.zeros(len(nearest), len(sizes))
        voter, voted = nearest.nonzero(as_tuple=True)
        votes.index_put_((voter, numbers[voted]), torch.ones(()), accumulate=True)  # (chunk, groups)
        is_winner = votes == votes.max(dim=1, keepdim=True).values
        own = numbers[start : start + len(nearest)]
        right[start : start + len(nearest)] = is_winner[torch.arange(len(own)), own].double() / is_winner.sum(dim=1)
        start += len(nearest)
    return 100.0 * float(right[has_others].mean())


def recognition(first: Tensor, second: Tensor) -> float:
    """How often an image's row in one view is nearest to its own in another, in percent; a draw of m counts as 1/m."""
    if not (_is_measurable(first) and _is_measurable(second)):
        return math.nan
    similarity = (_unit(first) @ _unit(second).T).round(decimals=_DECIMALS)  # (N, N)
    is_nearest = similarity == similarity.max(dim=1, keepdim=True).values
    return 100.0 * float((is_nearest.diagonal().double() / is_nearest.sum(dim=1)).mean())


def centroid_drift(before: Tensor, after: Tensor, groups: Tensor, align: bool = True) -> float:
    """Mean over groups of the cosine distance, 0 to 2, from a group's centroid before to the one after.

    Centroids are of unit rows, (N, F) both. With `align` the rows before are first turned onto the rows after as well
    as one rotation or reflection can (orthogonal Procrustes): turning the whole space harms nobody.
    """
    numbers, sizes = _numbered(groups)
    if not (len(before) and torch.isfinite(before).all() and torch.isfinite(after).all()):
        return math.nan
    then, now = _unit(before), _unit(after)  # (N, F)
    if align:
        left, _, right = torch.linalg.svd(then.T @ now)
        then = then @ (left @ right)
    sums = torch.zeros(2, len(sizes), then.shape[1], dtype=torch.float64)
    sums.index_add_(1, numbers, torch.stack([then, now]))  # (2, groups, F): as a direction, a sum is a mean
    return float((1 - F.cosine_similarity(sums[0], sums[1], dim=1)).clamp(min=0).mean())


@dataclass(frozen=True)
class Reading:
    """What one encoder makes of N images: features, and embeddings of two views."""

    features: Tensor  # (N, F)
    first: Tensor  # (N, D): embeddings of one view of each
    second: Tensor  # (N, D): and of another


Pair = tuple[float, float]  # before and after


@dataclass(frozen=True)
class Drift:
    """Changes for known images; nan where there is nothing to compare or to measure.

    Overlap, drift and agreement are of features; alignment (of the two views), uniformity and effective rank of
    embeddings, as in `Health`.
    """

    num_rows: int
    neighbour_overlap: float
    centroid_drift: float
    alignment: Pair
    uniformity: Pair
    effective_rank: Pair
    group_agreement: Pair
    reasons: tuple[str, ...]  # why what came after counts as collapsed; none when it doesn't
    start_agreement: float = math.nan  # group agreement of an encoder that has not learned anything yet

    @classmethod
    def of(
        cls, before: Reading | None, after: Reading, groups: Tensor, start_features: Tensor | None = None
    ) -> "Drift":
        """Compare two readings of the same images in groups (N,); `before` is None where nothing was there yet."""
        # At most a tenth of all images, so that few stay neighbours by mere chance.
        k = max(1, min(NUM_NEIGHBOURS, len(after.features) // 10))

        def pair(measure: Callable[[Reading], float]) -> Pair:
            return math.nan if before is None else measure(before), measure(after)

        return cls(
            num_rows=len(after.features),
            neighbour_overlap=math.nan if before is None else neighbour_overlap(before.features, after.features, k),
            centroid_drift=math.nan if before is None else centroid_drift(before.features, after.features, groups),
            alignment=pair(lambda one: _measured(alignment, one.first, one.second)),
            uniformity=pair(lambda one: _measured(uniformity, one.first)),
            effective_rank=pair(lambda one: _measured(effective_rank, one.first)),
            group_agreement=pair(lambda one: group_agreement(one.features, groups, k)),
            reasons=collapse(after),
            start_agreement=math.nan if start_features is None else group_agreement(start_features, groups, k),
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON values: pairs as [before, after], null for nan and infinity."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def collapse(reading: Reading) -> tuple[str, ...]:
    """The signs of collapse in words; few rows have few directions whatever the encoder, and show none."""
    if not all(torch.isfinite(rows).all() for rows in (reading.features, reading.first, reading.second)):
        return (NOT_FINITE,)
    return Health.of(reading.first).reasons if len(reading.first) >= FEWEST_ROWS else ()


def _measured(measure: Callable[..., float], *rows: Tensor) -> float:
    return measure(*rows) if all(map(_is_measurable, rows)) else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _neighbours(rows: Tensor, k: int) -> Iterator[Tensor]:
    """For one chunk of rows after the other, which of all rows are their k nearest others: bool (chunk, N)."""
    unit = _unit(rows)  # (N, F)
    size = max(1, _ENTRIES // len(unit))
    for start in range(0, len(unit), size):
        here = torch.arange(start, min(start + size, len(unit)))
        similarity = (unit[here] @ unit.T).round(decimals=_DECIMALS)  # (chunk, N)
        similarity[torch.arange(len(here)), here] = -math.inf  # a row is not a neighbour of its own
        furthest = similarity.topk(k, dim=1).values[:, -1:]  # (chunk, 1): which of equal ones topk finds is open
        is_nearer, is_level = similarity > furthest, similarity == furthest
        num_open = k - is_nearer.sum(dim=1, keepdim=True)  # (chunk, 1)
        yield is_nearer | (is_level & (is_level.cumsum(dim=1) <= num_open))


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.detach().cpu().double(), dim=1)


def _numbered(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's group counted from 0 (N,), and how many rows each has."""
    _, numbers, sizes = torch.unique(groups.cpu(), return_inverse=True, return_counts=True)
    return numbers, sizes


def _is_measurable(rows: Tensor) -> bool:
    return len(rows) > 1 and bool(torch.isfinite(rows).all())
