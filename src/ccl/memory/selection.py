"""Which images of a step are kept; a selection gives at most `count` positions in the order of choice."""

import torch
from torch import Tensor

from ccl.seeding import generator, permutation


def view_variance(view_embeddings: Tensor) -> Tensor:
    """Unbiased variance over the views of an image, summed over dimensions: (N, V, D) -> (N,). Paper: §Rehearsal."""
    variance: Tensor = torch.var(view_embeddings.float(), dim=1, correction=1)  # (N, D)
    return variance.sum(dim=1)


def lowest_scores(scores: Tensor, clusters: Tensor, per_cluster: int) -> Tensor:
    """Positions of the `per_cluster` lowest scores in each cluster, ascending; ties go to the earlier image.

    A cluster with fewer images gives all it has; the lowest scores left then make up for it.
    """
    order = torch.argsort(scores, stable=True)  # (N,)
    taken = torch.zeros(len(scores), dtype=torch.bool)
    distinct = torch.unique(clusters)
    for cluster in distinct:
        taken[order[clusters[order] == cluster][:per_cluster]] = True
    missing = min(per_cluster * len(distinct), len(scores)) - int(taken.sum())
    left = order[~taken[order]]
    taken[left[:missing]] = True
    return torch.nonzero(taken).flatten()


def lowest_view_variance(view_embeddings: Tensor, clusters: Tensor, per_cluster: int) -> Tensor:
    """Sorted positions of the best-learned images: the lowest view variance in each cluster. Paper: §Rehearsal.

    >>> views = torch.tensor([[[0.0], [3.0]], [[0.0], [1.0]], [[5.0], [5.0]], [[5.0], [7.0]]])  # (4, 2, 1)
    >>> ccl.memory.lowest_view_variance(views, clusters=torch.tensor([0, 0, 1, 1]), per_cluster=1)
    tensor([1, 2])
    """
    return lowest_scores(view_variance(view_embeddings), clusters, per_cluster)


def random_draw(num_images: int, count: int, *context: int | str) -> Tensor:
    """Sorted positions of `count` images (all, if there are fewer) drawn at random."""
    draw = generator(*context, "draw")
    return torch.randperm(num_images, generator=draw)[:count].sort().values


def random_order(ids: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Positions of `count` images (all, if there are fewer) in a random order that depends on their ids only."""
    return permutation(ids, seed, step)[:count]


def reservoir(ids: Tensor, count: int, seed: int) -> Tensor:
    """Positions of `count` images (all, if there are fewer): all ever seen are equally likely to be held.

    Give it the distinct ids of the images held and of those that arrive, and the same seed at every step: the lowest
    hashes of id and seed among them are the lowest of the whole stream, however it was cut into steps.
    """
    return permutation(ids, seed, "reservoir")[:count]


def rounded(values: Tensor) -> Tensor:
    """To nine decimals: what is equal in exact arithmetic ties, on any processor and in any order of summation."""
    return values.round(decimals=9)
