"""The training loop: the paper's Algorithm 1, from the first image of the stream to the last."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from ccl import ranks
from ccl.data import ImageSource, chain
from ccl.encoders.batch_norm_statistics import reestimate
from ccl.training.exemplar_selection import Selection, remember
from ccl.training.learner import Learner
from ccl.training.observer import Observer
from ccl.training.optimizer import Plan
from ccl.training.progress import Progress
from ccl.training.update import update
from ccl.views import Viewer

SavePoint = Literal["update", "epoch", "phase"]  # after a batch; after an epoch; after training, selection or probe
Save = Callable[[Progress, SavePoint], None]


def _save_nothing(progress: Progress, point: SavePoint) -> None: ...


def learn_stream(
    learner: Learner,
    stream: Sequence[ImageSource],
    viewer: Viewer,
    plan: Plan,
    *,
    selection: Selection | None = None,
    num_clusters: Sequence[int | None] = (),
    observer: Observer | None = None,
    after_step: Callable[[int], None] = lambda step: None,
    progress: Progress | None = None,
    save: Save = _save_nothing,
) -> None:
    """Learn D_1 … D_N one after the other, and do `after_step` when each is learned.

    With a `selection`, `num_clusters` says for each step how many groups its images are thought to have. `progress` is
    where to begin or to resume; `save` is called wherever everything could be saved.
    """
    at = progress or Progress()
    for step in range(at.step, len(stream)):
        groups = num_clusters[step] if selection is not None else None
        num_past = sum(map(len, stream[:step]))
        learn_step(learner, stream[step], viewer, plan, at, selection, groups, num_past, observer or Observer(), save)
        after_step(step)
        at.step, at.epoch, at.batch, at.phase = step + 1, 0, 0, "train"
        save(at, "phase")


def learn_step(
    learner: Learner,
    new: ImageSource,
    viewer: Viewer,
    plan: Plan,
    at: Progress,
    selection: Selection | None,
    num_clusters: int | None,
    num_past: int,
    observer: Observer,
    save: Save = _save_nothing,
) -> None:
    """Learn D_t, reading D_t and the rehearsal memory S and nothing else, from where `at` stands.

    The number of clusters is estimated where it is None; `num_past` images were in D_1 … D_{t−1}.
    """
    if at.phase == "train":
        images = chain([new, learner.memory.source_like(new)])  # D = D_t ∪ S
        optimizer = at.take(plan.make_optimizer(learner))
        if at.is_new_step:
            learner.begin_step(at.step, images.ids, len(new), num_past)  # θ_T ← θ_q
        else:
            learner.rejoin_step(at.step, len(new), num_past)
        observer.step_begins(at.step, len(new), len(images) - len(new), at.is_new_step)
        for epoch in range(at.epoch, plan.epochs):
            _learn_epoch(learner, images, viewer, plan, optimizer, at, observer, save)
            learner.end_epoch()  # θ_T follows θ_q
            observer.epoch_ends(at.step, epoch, plan.learning_rate_at(epoch))
            at.epoch, at.batch = epoch + 1, 0
            save(at, "epoch")
        learner.end_step()
        if learner.moves_weights:
            reestimate(learner.product, images, viewer, plan.batch_size)
        at.phase = "remember"
        save(at, "phase")
    if at.phase == "remember":
        if selection is not None:
            kept = remember(learner, new, viewer, at.step, num_clusters, selection)  # S ← S ∪ Sample(D_t)
            if kept is not None:
                observer.remembered(at.step, kept)
        if plan.statistics == "remembered":
            # The memory alone where there is one: it holds a share of D_t too, and D_t beside it would outweigh all
            # earlier steps.
            remembered = learner.memory.source_like(new) if len(learner.memory) else new
            reestimate(learner.product, remembered, viewer, plan.batch_size)
        if learner.statistics is not None:
            learner.statistics.take(learner.product, new, viewer, plan.batch_size)
        at.phase = "probe"
        save(at, "phase")


def _learn_epoch(
    learner: Learner,
    images: ImageSource,
    viewer: Viewer,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    at: Progress,
    observer: Observer,
    save: Save,
) -> None:
    """One epoch of D = D_t ∪ S from the batch where `at` stands; each rank sees its share of a batch."""
    here, context = (at.step, at.epoch), (plan.seed, at.step, at.epoch)
    batches = learner.composition.batches(images.ids, learner.num_new, plan.batch_size, plan.batch_multiple, *context)
    left = batches[at.batch :]
    shares = viewer.batches(
        images,
        [ranks.own(batch.positions) for batch in left],
        turns=[ranks.own(batch.turns) for batch in left],
        moment=here,
        num_views=learner.num_views,
        num_further=learner.num_further_views,
        further=[ranks.own(learner.has_further(batch.positions)) for batch in left],
        plain=learner.wants_plain(len(images)),
    )
    for whole, own in zip(left, shares, strict=True):
        # Every rank knows the whole batch's images, which need not travel.
        batch = replace(own, everyone=(whole.positions, images.ids[whole.positions]))
        at.batch += 1
        share = at.batch / len(batches)
        plan.set_rate(optimizer, at.epoch, share)
        values = update(learner, batch, optimizer, here, done=(at.epoch + share) / plan.epochs)
        observer.updated(*here, values, ranks.size() * len(batch.ids), share)
        save(at, "update")
