"""K-Means of a step's embeddings, and how many groups its images have where there are no labels (docs/memory.md)."""

import numpy as np
import torch
from torch import Tensor

from ccl.memory.selection import random_draw
from ccl.seeding import hashed

MINI_BATCH_FROM = 50_000  # images from which K-Means works in mini-batches, in bounded time and memory
MOST_ROWS = 4000  # more are not read, but so many of them drawn at random: time and memory are bounded
MOST_CLUSTERS = 256
LEAST_PER_CLUSTER = 8  # rows; a finer grouping of few images is not looked for
_NUM_NEIGHBOURS = 15  # groups of fewer rows than this are taken together


def group(embeddings: Tensor, num_clusters: int, *context: int | str) -> Tensor:
    """K-Means of the rows: (N, D) -> cluster numbers (N,); a pure function of the embeddings and the context."""
    from sklearn.cluster import KMeans, MiniBatchKMeans  # late: it takes a second to import

    if num_clusters > len(embeddings):
        raise ValueError(f"{num_clusters} clusters need as many images, there are {len(embeddings)}")
    # In double precision, so that ties and seeds decide alike everywhere; a step of 128,000 images takes 130 MB of it.
    rows = embeddings.float().cpu().numpy().astype(np.float64)
    seed = hashed(*context, "k-means") % 2**32
    if len(rows) >= MINI_BATCH_FROM:
        model = MiniBatchKMeans(num_clusters, random_state=seed, n_init=3, batch_size=8192)
    else:
        model = KMeans(num_clusters, random_state=seed, n_init=4)
    return torch.from_numpy(model.fit_predict(rows).astype(np.int64))


def estimate_num_clusters(embeddings: Tensor, *context: int | str) -> int:
    """The count of the grid whose K-Means grouping has the highest modularity, of unit rows (N, D)."""
    rows = drawn(embeddings, *context)  # (n, D)
    counts = [count for count in grid(len(rows)) if count <= len(torch.unique(rows, dim=0))]  # K-Means needs as many
    if counts == [1]:
        return 1
    nearest = nearest_neighbours(rows, min(_NUM_NEIGHBOURS, len(rows) // LEAST_PER_CLUSTER))  # (n, K)
    found = {count: modularity(nearest, group(rows, count, *context, "count")) for count in counts}
    return max(found, key=lambda count: found[count])  # the smaller one of equals


def drawn(embeddings: Tensor, *context: int | str) -> Tensor:
    """The rows that an estimate reads: all, or MOST_ROWS of them at random."""
    return embeddings[random_draw(len(embeddings), MOST_ROWS, *context, "count")].float().cpu()


def grid(num_rows: int) -> list[int]:
    """The counts that are tried for so many rows: 1, 2, 3, 4, 6, 8, 11, 16, … each √2 times the one before."""
    most = min(num_rows // LEAST_PER_CLUSTER, MOST_CLUSTERS)
    powers = [1, *(round(2 ** (power / 2)) for power in range(2, 17))]
    return [count for count in powers if count <= max(most, 1)]


def nearest_neighbours(rows: Tensor, count: int) -> Tensor:
    """The `count` most similar other rows of each unit row: (n, D) -> (n, count)."""
    similarity = rows @ rows.T  # (n, n)
    return similarity.fill_diagonal_(-torch.inf).topk(count, dim=1).indices


def modularity(nearest: Tensor, clusters: Tensor) -> float:
    """Newman's modularity of a grouping (n,) in the graph of each row's neighbours (n, K); 0 for a single group."""
    inside = (clusters[nearest] == clusters[:, None]).double().mean()
    degrees = nearest.shape[1] + torch.bincount(nearest.flatten(), minlength=len(clusters))  # (n,)
    parts = torch.bincount(clusters, weights=degrees.double()) / degrees.sum()  # (k,)
    return float(inside - (parts**2).sum())
