"""iCaRL's selection: kept images whose mean follows the mean of all."""

import torch
from torch import Tensor

from ccl.memory.budget import shares
from ccl.memory.selection import rounded


def herding(embeddings: Tensor, count: int, clusters: Tensor | None = None) -> Tensor:
    """Positions in the order of choice: each time the image that brings the mean of the kept nearest to that of all.

    iCaRL: algorithm 4 (arXiv 1611.07725). Rows are (N, D). With `clusters` (N,) each cluster has its own mean, and they
    take turns, so that each has an equal share of the count. Ties go to the earlier image.
    """
    if clusters is None:
        clusters = torch.zeros(len(embeddings), dtype=torch.long)
    members = [torch.nonzero(clusters == cluster).flatten() for cluster in torch.unique(clusters)]
    chosen = [
        here[_herd(embeddings[here].double().cpu(), share)]
        for here, share in zip(members, shares(count, [len(here) for here in members]), strict=True)
    ]
    turns = torch.cat([torch.zeros(0, dtype=torch.long), *(torch.arange(len(part)) for part in chosen)])
    return torch.cat([torch.zeros(0, dtype=torch.long), *chosen])[torch.argsort(turns, stable=True)]


def _herd(rows: Tensor, count: int) -> Tensor:
    """Positions in the order of choice. With k kept of sum S, ‖(k+1)μ − S − x‖² is least where x·(kμ + μ − S) − x²/2 is
    greatest."""
    mean, half = rows.mean(dim=0), rows.square().sum(dim=1) / 2.0  # (D,), (N,)
    gap, chosen = mean.clone(), torch.zeros(count, dtype=torch.long)
    taken = torch.zeros(len(rows), dtype=torch.bool)
    for turn in range(count):
        gain = rounded(rows @ gap - half).masked_fill(taken, -torch.inf)  # (N,)
        chosen[turn] = gain.argmax()
        taken[chosen[turn]] = True
        gap += mean - rows[chosen[turn]]
    return chosen
