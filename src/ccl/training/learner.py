"""The learner: the encoder, its objective, and the parts that keep the past."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ccl.composition import Composition, Pooled
from ccl.encoders import Embedded, Encoder
from ccl.encoders.batch_norm import placed
from ccl.encoders.batch_norm_statistics import AccumulatedStatistics
from ccl.memory import RehearsalMemory
from ccl.part import BatchContext, Objective, Part, Retention, WeightRule
from ccl.training.precision import LossScaler
from ccl.views import ViewBatch

CONTRAST = "contrast"


class Learner(nn.Module):
    """The student f_q with its objective, the parts that keep the past by their names, and the rehearsal memory.

    In the first step only the objective acts, with weight 1, unless the encoder starts from weights that know something
    (`has_start`): these are its past.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        parts: Mapping[str, Part],
        weights: Mapping[str, float],
        composition: Composition | None = None,
        has_start: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.registered_parts = nn.ModuleDict(parts)  # the name in checkpoints of format 1
        self.parts = dict(parts)
        self.weights = dict(weights)
        self.composition = composition or Pooled()
        self.has_start = has_start
        self.memory = RehearsalMemory()
        self.statistics: AccumulatedStatistics | None = None  # set where batch norms evaluate with those of all steps
        self.scaler: LossScaler | None = None  # set where the encoder computes in float16
        self.step = 0
        self.num_new = 0  # images of D_t; the source's later positions are old ones
        self.num_past = 0  # images of all earlier steps, whether they are remembered or not

    @property
    def has_past(self) -> bool:
        """Whether there are earlier steps, or a start, to keep."""
        return self.step > 0 or self.has_start

    @property
    def _has_old_images(self) -> bool:
        return self.step > 0 or len(self.memory) > 0

    @property
    def _acting(self) -> list[Part]:
        return [self.objective, *self.parts.values()]

    @property
    def product(self) -> Encoder:
        """The encoder that is selected with, probed and exported: the student, or a weight rule's copy."""
        return self._rules[0].product(self.encoder) if self._rules else self.encoder

    @property
    def moves_weights(self) -> bool:
        """Whether a weight rule leaves other weights at the end of this step than were trained in it."""
        return any(rule.moves_weights for rule in self._rules)

    @property
    def _rules(self) -> list[WeightRule]:
        return [part for part in self.parts.values() if isinstance(part, WeightRule)]

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """All trained parameters: the encoder's first, then those of the parts."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def begin_step(self, step: int, ids: Tensor, num_new: int, num_past: int = 0) -> None:
        """Begin a step; `ids` are the images of D_t, then those of the rehearsal memory."""
        self.rejoin_step(step, num_new, num_past)
        for part in self._acting:
            part.begin_step(self.encoder, step, ids)

    def rejoin_step(self, step: int, num_new: int, num_past: int = 0) -> None:
        """Resume in the middle of a step from a loaded state; no part's `begin_step` is called."""
        self.step, self.num_new, self.num_past = step, num_new, num_past
        self.train()

    def wants_plain(self, num_images: int) -> Tensor | None:
        """Which positions of the source the parts want to see without augmentation, (num_images,); None for none."""
        is_wanted = self.has_past and any(part.embeds_plain for part in self._retention)
        return torch.arange(num_images) >= self.num_new if is_wanted else None

    @property
    def _retention(self) -> list[Retention]:
        return [part for part in self.parts.values() if isinstance(part, Retention)]

    @property
    def num_student_views(self) -> int:
        """The number of views that the student embeds: the objective's, or more where a part asks for them."""
        asked = [part.num_student_views for part in self._retention] if self.has_past else []
        return max([self.objective.num_student_views, *asked])

    @property
    def num_views(self) -> int:
        """The number of random views of all images of a batch, for the student or the objective."""
        return max(self.objective.num_views, self.num_student_views)

    @property
    def num_further_views(self) -> int:
        """The number of further views, of old images only."""
        asked = [part.num_further_views for part in self._retention] if self._has_old_images else []
        return max(asked, default=0)

    def has_further(self, positions: Tensor) -> Tensor:
        """Which images (N,) of a whole batch have further views: the first of its old ones, by the share."""
        is_old = positions >= self.num_new
        if not self.num_further_views:
            return torch.zeros_like(is_old)
        share = max(part.share_with_further for part in self._retention if part.num_further_views)
        return is_old & (is_old.cumsum(0) <= round(share * int(is_old.sum())))  # as many in each batch: shapes recur

    @property
    def stores(self) -> list[Literal["features", "embeddings"]]:
        """The kinds of vectors that the rehearsal memory keeps beside its images."""
        return sorted(frozenset[Literal["features", "embeddings"]]().union(*(part.stores for part in self._retention)))

    def losses(
        self, batch: ViewBatch, moment: tuple[int, int], done: float = 0.0
    ) -> tuple[dict[str, Tensor], BatchContext]:
        """Each term's loss by its name, unweighted, and what `after_update` needs; moment is (step, epoch)."""
        batch = self.composition.mix(batch, self.num_new, moment)
        is_old = batch.positions >= self.num_new  # (N,)
        student, student_plain, further = self._embed(batch, is_old)
        own = student[: max(self.objective.num_student_views, 1)]
        positions = batch.all_positions
        all_old = positions >= self.num_new
        context = BatchContext(
            batch=batch,
            is_old=is_old,
            has_old_images=self._has_old_images,
            moment=moment,
            done=done,
            student=student,
            contrast=self.objective.contrast(self.encoder, own, batch, moment),
            student_plain=student_plain,
            stored=self.memory.recall(positions[all_old] - self.num_new),  # every rank has all of the memory
            old_of_all=all_old,
            past_per_new=self.num_past / max(self.num_new, 1),
            further=further,
            num_further_of_all=int(self.has_further(positions).sum()),
        )
        losses = {CONTRAST: context.contrast.loss}
        for name, part in self.parts.items():
            loss = part.loss(context) if self.has_past and isinstance(part, Retention) else None
            losses |= {} if loss is None else {name: loss}
        return losses, context

    def _embed(self, batch: ViewBatch, is_old: Tensor) -> tuple[tuple[Embedded, ...], Embedded, tuple[Embedded, ...]]:
        """The student's embeddings of its views, of the plain old images, and of their further views."""
        views = batch.views[: self.num_student_views]
        own = torch.arange(len(is_old), device=batch.views[0].device)  # (N,)
        old = is_old.nonzero().flatten().to(own.device)  # (M,)
        others = batch.rows_with_further.to(own.device)  # (F,)
        shown = batch.further if len(others) else ()
        # One forward for views and for what is shown of old images alone, so that these have the statistics of a whole
        # batch. An image is in the batch-norm group of its view.
        riding = [(others, view) for view in shown]
        riding += [(old, batch.plain)] if len(batch.plain) else []
        if not views and not riding:
            return (), self.encoder.embed_none(own.device), ()
        rows = [*(own for _ in views), *(rows for rows, _ in riding)]
        with placed(self.encoder, torch.cat(rows) if riding else None):
            embedded = self.encoder.embed(torch.cat([*views, *(images for _, images in riding)]))
        parts = embedded.split([len(places) for places in rows])
        student, further = tuple(parts[: len(views)]), tuple(parts[len(views) : len(views) + len(shown)])
        none = embedded.rows(slice(0, 0))
        return student, parts[-1] if len(batch.plain) else none, further

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """L = λ₁ L_contrast + λ₂ L_ESQ + λ₃ L_kd. Paper: eq. 5."""
        weights = self.weights if self.has_past else {CONTRAST: 1.0}
        return torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()

    def running_statistics(self) -> list[Tensor]:
        """Running statistics of the batch norms of the encoder, its copies and the parts."""
        return [buffer for name, buffer in self.named_buffers() if name.endswith(("running_mean", "running_var"))]

    def after_update(self, context: BatchContext) -> None:
        """After an optimizer step: momentum copies follow, queues take their keys."""
        for part in self._acting:
            part.after_update(self.encoder, context)

    def end_epoch(self) -> None:
        """Called at the end of an epoch."""
        for part in self._acting:
            part.end_epoch(self.encoder)

    def end_step(self) -> None:
        """Called when the training of a step has ended."""
        for part in self._acting:
            part.end_step(self.encoder)
