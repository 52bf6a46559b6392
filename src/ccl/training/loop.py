"""The training loop: the paper's Algorithm 1, from the first image of the stream to the last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
    save: Save = lambda progress, point: None,
) -> None:
    """Learn D_1 … D_N one after the other, and do `after_step` when each is learned.

    With a `selection`, `num_clusters` says how many groups the images of each step have. `progress` is where to begin
    or to resume; `save` is called wherever everything could be saved.
    """
    at = progress or Progress()
    loop = Loop(learner, viewer, plan, at, selection, observer or Observer(), save)
    for step in range(at.step, len(stream)):
        groups = num_clusters[step] if selection is not None else None
        loop.learn_step(stream[step], groups, sum(map(len, stream[:step])))
        after_step(step)
        at.step, at.epoch, at.batch, at.phase = step + 1, 0, 0, "train"
        save(at, "phase")


@dataclass
class Loop:
    """The loop over a stream: its learner, viewer, plan, position, selection and observer."""

    learner: Learner
    viewer: Viewer
    plan: Plan
    at: Progress
    selection: Selection | None = None
    observer: Observer = field(default_factory=Observer)
    save: Save = lambda progress, point: None

    def learn_step(self, new: ImageSource, num_clusters: int | None, num_past: int) -> None:
        """Learn D_t, reading D_t and the memory S alone, from where `at` stands; `num_past` images came before."""
        learner, plan, at = self.learner, self.plan, self.at
        if at.phase == "train":
            images = chain([new, learner.memory.source_like(new)])  # D = D_t ∪ S
            optimizer = at.take(plan.make_optimizer(learner))
            if at.is_new_step:
                learner.begin_step(at.step, images.ids, len(new), num_past)  # θ_T ← θ_q
            else:
                learner.rejoin_step(at.step, len(new), num_past)
            self.observer.step_begins(at.step, len(new), len(images) - len(new), at.is_new_step)
            for epoch in range(at.epoch, plan.epochs):
                self._learn_epoch(images, optimizer)
                learner.end_epoch()  # θ_T follows θ_q
                self.observer.epoch_ends(at.step, epoch, plan.learning_rate_at(epoch))
                at.epoch, at.batch = epoch + 1, 0
                self.save(at, "epoch")
            learner.end_step()
            if learner.moves_weights:
                reestimate(learner.product, images, self.viewer, plan.batch_size)
            at.phase = "remember"
            self.save(at, "phase")
        if at.phase == "remember":
            if self.selection is not None:
                kept = remember(learner, new, self.viewer, at.step, num_clusters, self.selection)  # S ← S ∪ Sample(D_t)
                if kept is not None:
                    self.observer.remembered(at.step, kept)
            if plan.statistics == "remembered":
                # The memory alone: it holds a share of D_t too, and D_t beside it would outweigh all earlier steps.
                remembered = learner.memory.source_like(new) if len(learner.memory) else new
                reestimate(learner.product, remembered, self.viewer, plan.batch_size)
            if learner.statistics is not None:
                learner.statistics.take(learner.product, new, self.viewer, plan.batch_size)
            at.phase = "probe"
            self.save(at, "phase")

    def _learn_epoch(self, images: ImageSource, optimizer: torch.optim.Optimizer) -> None:
        """One epoch of D = D_t ∪ S from the batch where `at` stands; each rank sees its share of a batch."""
        learner, plan, at = self.learner, self.plan, self.at
        here, context = (at.step, at.epoch), (plan.seed, at.step, at.epoch)
        batches = learner.composition.batches(
            images.ids, learner.num_new, plan.batch_size, plan.batch_multiple, *context
        )
        left = batches[at.batch :]
        shares = self.viewer.batches(
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
            self.observer.updated(*here, values, ranks.size() * len(batch.ids), share)
            self.save(at, "update")
