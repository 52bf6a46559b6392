"""Selections that represent a step by few images: unit rows or any (N, D) in, positions in the order of choice out."""

import heapq

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ccl.memory.budget import shares
from ccl.memory.selection import rounded

_NUM_NEIGHBOURS = 32  # known per image; when all of them are dropped, its neighbours are looked up again
_BLOCK = 2**20  # similarities held at once: 8 MB


def herding(embeddings: Tensor, count: int, clusters: Tensor | None = None) -> Tensor:
    """Positions in the order of choice: each time the image that brings the mean of the kept nearest to that of all.

    iCaRL: algorithm 4 (arXiv 1611.07725). Rows are (N, D). With `clusters` (N,) each has its own mean and an equal part
    of the count, and they take turns. Ties go to the earlier image.
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


def k_center(embeddings: Tensor, count: int) -> Tensor:
    """Positions in the order of choice: the row nearest to the mean, then the farthest from all kept. Gonzalez 1985."""
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


def minred(embeddings: Tensor, count: int) -> Tensor:
    """Positions of what is left when the image with the most similar neighbour is dropped again and again.

    MinRed: senthilps8/continuous_ssl_problem (ECCV 2022). What would be dropped last comes first. Similarity is the
    cosine; rows (N, D) of any norm. Time grows with N², memory with N.
    """
    # Differs: the authors choose after every batch, by a moving average of both views' features; here it is once a
    # step, by the plain images' embeddings.
    num = len(embeddings)
    if min(count, num - 1) <= 0:
        return torch.arange(min(max(count, 0), num))
    rows = F.normalize(embeddings.double().cpu(), dim=1)  # (N, D)
    neighbours, everywhere = [], torch.arange(num)
    for block in torch.split(everywhere, max(_BLOCK // num, 1)):
        neighbours += _neighbours(rows[block], block, rows, everywhere)
    is_left = torch.ones(num, dtype=torch.bool)
    left = is_left.numpy()  # the same memory
    # Dropping images can only lower a similarity. So the one on top of the heap is looked at again, and goes back with
    # its present value or, if that is what it was, is dropped: most images are never looked at.
    # The two images of a closest pair always tie. Differs: the authors' code drops the earlier one, we keep it.
    heap = [(-float(similarities[0]), -number) for number, (similarities, _) in enumerate(neighbours)]
    heapq.heapify(heap)
    dropped: list[int] = []
    while len(heap) > 1:
        known, number = -heap[0][0], -heap[0][1]
        similarities, positions = neighbours[number]
        if not left[positions].any():
            here, others = torch.tensor([number]), torch.nonzero(is_left).flatten()
            neighbours[number] = _neighbours(rows[here], here, rows[others], others)[0]
            similarities, positions = neighbours[number]
        present = float(similarities[left[positions].argmax()])
        if present == known:
            heapq.heappop(heap)
            dropped.append(number)
            left[number] = False
        else:
            heapq.heapreplace(heap, (-present, -number))
    return torch.tensor([*torch.nonzero(is_left)[:, 0].tolist(), *reversed(dropped)][:count])


def _neighbours(
    rows: Tensor, places: Tensor, others: Tensor, their_places: Tensor
) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """For each row the similarities, descending, and the places of its nearest others, but not of itself."""
    similarity = rows @ others.T  # (B, M)
    similarity.masked_fill_(places[:, None] == their_places, -torch.inf)
    nearest = similarity.topk(min(_NUM_NEIGHBOURS, len(others) - 1), dim=1)  # (B, K)
    return list(zip(rounded(nearest.values).numpy(), their_places[nearest.indices].numpy(), strict=True))


def principal_components(embeddings: Tensor, count: int) -> Tensor:
    """Positions of the images nearest to the principal directions, which take turns. EDSR: liuhanmo321/EntropyUCL."""
    rows = embeddings.double().cpu()  # (N, D)
    if min(count, len(rows)) <= 0:
        return torch.zeros(0, dtype=torch.long)
    centred = rows - rows.mean(dim=1, keepdim=True)  # as the authors' PCA of the transposed matrix does
    variances, directions = torch.linalg.eigh(centred.T @ centred)  # ascending: (D,), (D, D)
    is_spanned = variances > 1e-9 * variances.max()
    # Differs: a direction has no sign, so either end counts; the authors' PCA has one by convention.
    nearness = rounded((rows @ directions[:, is_spanned].flip(1)).abs())  # (N, K)
    if nearness.shape[1] == 0:
        nearness = torch.zeros(len(rows), 1, dtype=torch.double)  # every row is constant: the earliest are kept
    chosen = torch.zeros(min(count, len(rows)), dtype=torch.long)
    for turn in range(len(chosen)):  # Differs: the authors may choose an image twice and then store fewer.
        chosen[turn] = nearness[:, turn % nearness.shape[1]].argmax()
        nearness[chosen[turn]] = -1.0  # taken
    return chosen
