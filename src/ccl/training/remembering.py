"""After a step: choose the images of D_t that the rehearsal memory keeps. Paper: §Rehearsal, the sampling strategy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

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
    clusters = group(plain, num_clusters, selection.seed, step)  # (N,)
    scores = torch.cat(list(_scores(learner.encoder, source, viewer, step, plain, selection)))  # (N,)
    kept = lowest_scores(scores, clusters, selection.per_cluster, selection.top_up)
    learner.memory.add(source, kept, step, clusters[kept], scores[kept])


def _scores(
    encoder: Encoder, source: ImageSource, viewer: Viewer, step: int, plain: Tensor, selection: Selection
) -> Iterator[Tensor]:
    """The views' spread, batch by batch, so that the views of a large step are never held at once."""
    measure = view_variance if selection.score == "variance" else distance_to_mean
    batches = torch.split(torch.arange(len(source)), selection.batch_size)
    with evaluating(encoder):
        for batch in viewer.batches(source, batches, moment=(step, SELECTION_EPOCH), num_views=selection.num_views):
            embedded = [encoder(view).float().cpu() for view in batch.views]
            if selection.include_plain:
                embedded.append(plain[batch.positions])
            yield measure(torch.stack(embedded, dim=1))  # (N, V, D) -> (N,)
