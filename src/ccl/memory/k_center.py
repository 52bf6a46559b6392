"""Farthest-first selection: every image has a kept one near it."""

import torch
from torch import Tensor

from ccl.memory.selection import rounded


def k_center(embeddings: Tensor, count: int) -> Tensor:
    """Positions in the order of choice: the row nearest to the mean, then each time that farthest from all kept.

    Gonzalez 1985: of rows (N, D), the largest distance to the nearest kept one is at most twice the least possible.
    Ties go to the earlier image.
    """
    rows = embeddings.double().cpu()  # (N, D)
    if min(count, len(rows)) <= 0:
        return torch.zeros(0, dtype=torch.long)
    squares = rows.square().sum(dim=1)  # (N,)

    def squared_distance(point: Tensor) -> Tensor:
        return rounded(squares - 2.0 * (rows @ point) + point.square().sum())  # (N,): no (N, D) of differences

    position = squared_distance(rows.mean(dim=0)).argmin()
    nearest = squared_distance(rows[position])  # (N,): to the nearest kept row
    kept = [position]
    while len(kept) < min(count, len(rows)):
        nearest[position] = -1.0  # taken; it stays below every distance
        position = nearest.argmax()
        nearest = torch.minimum(nearest, squared_distance(rows[position]))
        kept.append(position)
    return torch.stack(kept)
