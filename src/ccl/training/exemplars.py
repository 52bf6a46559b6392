"""After a step: choose the images of D_t that the rehearsal memory keeps. Paper: §Rehearsal, the sampling strategy."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ccl import ranks
from ccl.data import ImageSource
from ccl.encoders import Encoder
from ccl.encoders.reading import evaluating, extract
from ccl.memory.budget import Budget, in_turns, within
from ccl.memory.cluster_count import estimate_num_clusters
from ccl.memory.selection import distance_to_mean, group, lowest_scores, random_draw, view_variance
from ccl.training.learner import Learner
from ccl.views import Viewer

SELECTION_EPOCH = -1  # the views of a selection are those of no epoch


@dataclass(frozen=True)
class Selection:
    """How many images of a step are kept, and which."""

    method: Literal["random", "view_variance"]
    per_cluster: int
    num_views: int = 6
    include_plain: bool = False
    score: Literal["variance", "distance_to_mean"] = "variance"
    top_up: bool = True
    replacement: bool = False
    budget: Budget | None = None  # of the whole memory; per_cluster, top_up and replacement then say nothing
    seed: int = 0
    batch_size: int = 512

    @property
    def asks_clusters(self) -> bool:
        """Whether it must know the number of clusters: not if nothing is kept, or a budget is filled at random."""
        return self.per_cluster > 0 if self.budget is None else self.method != "random"


@dataclass(frozen=True)
class Remembered:
    """What a selection came to."""

    num_clusters: int  # 0 where nobody had to know
    is_estimated: bool  # the number of clusters
    num_kept: int  # images of this step
    num_images: int  # in the memory now


def remember(
    learner: Learner, source: ImageSource, viewer: Viewer, step: int, num_clusters: int | None, selection: Selection
) -> Remembered | None:
    """S ← S ∪ Sample_strategy(D_t): add the chosen images of the step to the learner's memory; a budget trims it.

    The number of clusters is estimated where it is None. The answer is None if nothing is to be kept of any step.
    """
    memory, budget = learner.memory, selection.budget
    if budget is None and selection.per_cluster == 0:
        return None
    is_random = selection.method == "random"
    is_estimated = selection.asks_clusters and num_clusters is None
    plain = torch.zeros(0)
    if is_estimated or not is_random:
        plain = extract(learner.product, source, viewer, selection.batch_size, "embeddings")  # (N, D)
    number = num_clusters if selection.asks_clusters and num_clusters else 0
    # K-Means on one rank: another processor may round otherwise, and all must remember the same images.
    if is_estimated:
        number = ranks.from_first(partial(estimate_num_clusters, plain, selection.seed, step))
    if is_random:
        clusters, scores = torch.full((len(source),), -1), torch.full((len(source),), float("nan"))
    else:
        clusters = ranks.from_first(partial(group, plain, number, selection.seed, step))  # (N,)
        scores = _scores(learner.product, source, viewer, step, plain, selection)  # (N,)
    if budget is not None:
        kept = _within_budget(budget, memory.room(budget), source, clusters, scores, selection.seed, step)
    elif is_random:
        count = selection.per_cluster * number
        kept = random_draw(len(source), count, selection.seed, step, replacement=selection.replacement)
    else:
        kept = lowest_scores(scores, clusters, selection.per_cluster, selection.top_up)
    memory.add(source, kept, step, clusters[kept], scores[kept], _vectors(learner, source, kept, viewer, selection))
    if budget is not None:
        memory.trim(budget, selection.seed)
    return Remembered(number, is_estimated, int((memory.steps == step).sum()), len(memory))


def _vectors(
    learner: Learner, source: ImageSource, kept: Tensor, viewer: Viewer, selection: Selection
) -> dict[str, Tensor]:
    """What the encoder makes of the kept images at the end of their step, (K, ·), of each kind that a part stores."""
    images = source.subset(kept)
    return {
        kind: extract(learner.product, images, viewer, selection.batch_size, kind)
        for kind in (learner.stores if len(kept) else ())
    }


def _within_budget(
    budget: Budget, room: int, source: ImageSource, clusters: Tensor, scores: Tensor, *context: int
) -> Tensor:
    """Positions, ascending, of those that find room; no more images are encoded to be measured than it takes."""
    order = in_turns(scores, clusters, source.ids, *context)
    sizes = (budget.size(source.encoded(position)) for position in order.tolist())
    return order[within(sizes, room)].sort().values


def _scores(
    encoder: Encoder, source: ImageSource, viewer: Viewer, step: int, plain: Tensor, selection: Selection
) -> Tensor:
    """The views' spread, (N,), batch by batch, so that the views of a large step are never held at once."""
    measure = view_variance if selection.score == "variance" else distance_to_mean
    mine = ranks.share(torch.arange(len(source)))
    scores = []
    with evaluating(encoder):
        batches = torch.split(mine, selection.batch_size)
        for batch in viewer.batches(source, batches, moment=(step, SELECTION_EPOCH), num_views=selection.num_views):
            embedded = [encoder(view).float().cpu() for view in batch.views]
            if selection.include_plain:
                embedded.append(plain[batch.positions])
            scores.append(measure(torch.stack(embedded, dim=1)))  # (n, V, D) -> (n,)
    return ranks.gather(torch.cat(scores), mine)
