"""After a step: choose the images of D_t that the rehearsal memory keeps. Paper: §Rehearsal, the sampling strategy."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ccl import ranks
from ccl.data import ImageSource
from ccl.encoders import Encoder
from ccl.encoders.reading import evaluating, extract
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
    seed: int = 0
    batch_size: int = 512


def remember(
    learner: Learner, source: ImageSource, viewer: Viewer, step: int, num_clusters: int, selection: Selection
) -> None:
    """S ← S ∪ Sample_strategy(D_t): add the chosen images of the step to the learner's memory."""
    if selection.per_cluster == 0:
        return
    if selection.method == "random":
        count = selection.per_cluster * num_clusters
        kept = random_draw(len(source), count, selection.seed, step, replacement=selection.replacement)
        clusters, scores = torch.full((len(kept),), -1), torch.full((len(kept),), float("nan"))
        learner.memory.add(source, kept, step, clusters, scores)
        return
    plain = extract(learner.encoder, source, viewer, selection.batch_size, "embeddings")  # (N, D)
    # K-Means on one rank: another processor may round otherwise, and all must remember the same images.
    clusters = ranks.from_first(lambda: group(plain, num_clusters, selection.seed, step))  # (N,)
    scores = _scores(learner.encoder, source, viewer, step, plain, selection)  # (N,)
    kept = lowest_scores(scores, clusters, selection.per_cluster, selection.top_up)
    learner.memory.add(source, kept, step, clusters[kept], scores[kept])


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
