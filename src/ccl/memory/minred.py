"""MinRed's selection: drop what has a near double, until few enough are left."""

import heapq

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ccl.memory.selection import rounded

_NUM_NEIGHBOURS = 32  # known per image; when all of them are dropped, its neighbours are looked up again
_BLOCK = 2**20  # similarities held at once: 8 MB


def minred(embeddings: Tensor, count: int) -> Tensor:
    """Positions of what is left when the image with the most similar neighbour is dropped again and again.

    In the order of choice, as all selections: what would be dropped last comes first. MinRed:
    senthilps8/continuous_ssl_problem (ECCV 2022). Similarity is the cosine; rows (N, D) of any norm. Time grows with
    N², memory with N.
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
