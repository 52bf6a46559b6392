"""After a step: choose the images of D_t that the rehearsal memory keeps. Paper: §Rehearsal, the sampling strategy."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from ccl import ranks
from ccl.catalogue import CLUSTERS, EMBEDDINGS, ONE_POOL, VIEWS, known_part, row_of
from ccl.data import ImageSource
from ccl.encoders import Encoder, evaluating, extract
from ccl.memory.budget import Budget, within
from ccl.memory.clusters import estimate_num_clusters, group
from ccl.memory.selection import lowest_scores, random_draw, view_variance
from ccl.section import Count, CountOrZero, Section, num_bytes
from ccl.strategies import RANDOM, VIEW_VARIANCE, asks_clusters
from ccl.training.learner import Learner
from ccl.views import Viewer

SELECTION_EPOCH = -1  # the views of a selection are those of no epoch


class MemoryOptions(Section):
    """What is kept of each step."""

    per_cluster: CountOrZero = 20  # of each step, so the memory grows with the stream
    clusters: Count | Literal["estimate"] | None = None  # None: the number of classes in the step (docs/memory.md)
    # At most so many images ("300") or bytes of their files ("50MB") in all, each step an equal share; None: no limit.
    # A share is filled in turns over the clusters: per_cluster then says nothing.
    budget: Count | str | None = None
    selection: str | None = None  # a row of `ccl methods`; None: the strategy's own
    num_views: Annotated[int, Field(ge=2)] = 6  # over which an image's variance is taken

    @field_validator("selection")
    @classmethod
    def _known_selection(cls, value: str | None) -> str | None:
        return None if value is None else known_part("memory.selection", value)

    @field_validator("budget")
    @classmethod
    def _a_size(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str):
            num_bytes(value)
        return value


@dataclass(frozen=True)
class Selection:
    """The number of images kept of a step, and how they are chosen."""

    method: str  # a row of the catalogue's selections, or a path
    options: MemoryOptions = MemoryOptions()
    seed: int = 0
    batch_size: int = 512

    @property
    def budget(self) -> Budget | None:
        """The budget of the whole memory; per_cluster then has no effect."""
        asked = self.options.budget
        if isinstance(asked, str):
            return Budget(num_bytes(asked), "bytes")
        return None if asked is None else Budget(asked, "images")

    @property
    def asks_clusters(self) -> bool:
        """Whether it must know the number of clusters: not if nothing is kept, or a budget is filled without them."""
        return asks_clusters(self.method, self.options.per_cluster, self.budget is not None)


@dataclass(frozen=True)
class Remembered:
    """The outcome of a selection."""

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
    memory, budget, row = learner.memory, selection.budget, row_of("memory.selection", selection.method)
    per_cluster, seed = selection.options.per_cluster, selection.seed
    if budget is None and per_cluster == 0:
        return None
    is_estimated = selection.asks_clusters and num_clusters is None
    embeddings = torch.zeros(0)
    if is_estimated or EMBEDDINGS in row.needs:
        embeddings = extract(learner.product, source, viewer, selection.batch_size, "embeddings")  # (N, D)
    number = num_clusters if selection.asks_clusters and num_clusters else 0
    # On one rank: another processor may round otherwise, and all must remember the same images.
    if is_estimated:
        number = ranks.from_first(partial(estimate_num_clusters, embeddings, seed, step))
    clusters, scores = torch.full((len(source),), -1), torch.full((len(source),), float("nan"))
    if CLUSTERS in row.needs:
        clusters = ranks.from_first(partial(group, embeddings, number, seed, step))  # (N,)
    if VIEWS in row.needs:
        scores = _scores(learner.product, source, viewer, step, selection)  # (N,)

    def in_order(count: int, **images: Tensor) -> Tensor:
        """At most `count` positions in the order of choice; a selection takes by name what it asks for."""
        offered = {**images, "embeddings": embeddings, "seed": seed, "step": step, "count": count}
        order: Tensor = ranks.from_first(partial(row.make, offered))
        return order

    step_images = {"ids": source.ids, "clusters": clusters, "scores": scores}
    # The paper's two selections are not orders of choice where there is no budget.
    if budget is None and selection.method == RANDOM:
        chosen = random_draw(len(source), per_cluster * number, seed, step)
    elif budget is None and selection.method == VIEW_VARIANCE:
        chosen = lowest_scores(scores, clusters, per_cluster)
    elif budget is None:
        chosen = in_order(per_cluster * number, **step_images)
    else:
        room = budget.limit if ONE_POOL in row.gives else memory.room(budget)
        order = in_order(min(room, len(source)) if budget.unit == "images" else len(source), **step_images)
        # No more images are encoded than must be measured.
        chosen = order[within((budget.size(source.encoded(position)) for position in order.tolist()), room)]
    if EMBEDDINGS in row.needs and VIEWS not in row.needs:
        scores[chosen] = torch.arange(float(len(chosen)))  # without scores, what was chosen first stays longest
    kept = chosen.sort().values
    vectors: dict[str, Tensor] = {
        kind: extract(learner.product, source.subset(kept), viewer, selection.batch_size, kind)
        for kind in (learner.stores if len(kept) else ())
    }
    memory.add(source, kept, step, clusters[kept], scores[kept], vectors)
    if budget is not None and ONE_POOL in row.gives:
        memory.cut(budget, in_order(len(memory), ids=memory.ids, clusters=memory.clusters, scores=memory.scores))
    elif budget is not None:
        memory.trim(budget, seed)
    return Remembered(number, is_estimated, int((memory.steps == step).sum()), len(memory))


def _scores(encoder: Encoder, source: ImageSource, viewer: Viewer, step: int, selection: Selection) -> Tensor:
    """The views' spread, (N,), batch by batch, so that the views of a large step are never held at once."""
    batches = torch.split(ranks.own(torch.arange(len(source))), selection.batch_size)
    moment, num_views = (step, SELECTION_EPOCH), selection.options.num_views
    scores = []
    with evaluating(encoder):
        for batch in viewer.batches(source, batches, moment=moment, num_views=num_views):
            embedded = [encoder(view).float().cpu() for view in batch.views]
            scores.append(view_variance(torch.stack(embedded, dim=1)))  # (n, V, D) -> (n,)
    return ranks.gather(torch.cat(scores), torch.ones(len(source), dtype=torch.bool))
