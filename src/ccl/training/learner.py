"""The learner: one encoder, what teaches it the present, and what keeps the past."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.encoders import Encoder
from ccl.encoders.split_batch_norm import placed
from ccl.memory import RehearsalMemory
from ccl.objectives import Contrast, Objective
from ccl.retention import BatchContext, Retention
from ccl.training.precision import LossScaler
from ccl.views import ViewBatch

CONTRAST = "contrast"


class Learner(nn.Module):
    """The student f_q with its objective, retention parts and rehearsal memory.

    Parts act at four moments: `begin_step`, `losses`, `after_update`, `end_epoch`. Weights count from the second step
    on; in the first there is no past, and only the objective acts, with weight 1.
    """

    def __init__(
        self, encoder: Encoder, objective: Objective, retention: Sequence[Retention], weights: Mapping[str, float]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.parts = tuple(retention)
        self.registered_parts = nn.ModuleDict({part.name: part for part in retention if isinstance(part, nn.Module)})
        self.weights = dict(weights)
        self.memory = RehearsalMemory()
        self.scaler: LossScaler | None = None  # set where the encoder computes in float16
        self.step = 0
        self.num_new = 0  # images of D_t; the source's later positions are old ones

    @property
    def has_past(self) -> bool:
        return self.step > 0

    def begin_step(self, step: int, ids: Tensor, num_new: int) -> None:
        """D_t has arrived: `ids` are its images, then those of the rehearsal memory."""
        self.rejoin_step(step, num_new)
        self.objective.begin_step(self.encoder, ids, step)
        for part in self.parts:
            part.begin_step(self.encoder)

    def rejoin_step(self, step: int, num_new: int) -> None:
        """Go on in the middle of a step with a state that was loaded: no part begins anew."""
        self.step, self.num_new = step, num_new
        self.train()

    def wants_plain(self, num_images: int) -> Tensor | None:
        """Which positions of the source the parts want to see without augmentation, (num_images,); None for none."""
        if self._plain_images == "batch":
            return torch.ones(num_images, dtype=torch.bool)
        return torch.arange(num_images) >= self.num_new if self._plain_images == "old" else None

    @property
    def _plain_images(self) -> str:
        wanted = {part.plain_images for part in self.parts} if self.has_past else set()
        return "batch" if "batch" in wanted else "old" if "old" in wanted else "none"

    def losses(self, batch: ViewBatch, moment: tuple[int, int]) -> tuple[dict[str, Tensor], BatchContext]:
        """Each term's loss by its name, unweighted, and what `after_update` needs; moment is (step, epoch)."""
        is_old = batch.positions >= self.num_new  # (N,)
        student, plain, student_plain = self._embed(batch, is_old)
        contrast: Contrast = self.objective.contrast(student, batch, moment)
        context = BatchContext(batch, is_old, self.has_past, contrast, plain, student_plain)
        losses = {CONTRAST: contrast.loss}
        if self.has_past:
            found = {part.name: part.loss(context) for part in self.parts}
            losses |= {name: loss for name, loss in found.items() if loss is not None}
        return losses, context

    def _embed(self, batch: ViewBatch, is_old: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """The student's embeddings of the views it must see, the plain old images, and their embeddings."""
        views = batch.views[: self.objective.num_student_views]
        num_rows = sum(len(view) for view in views)
        if self._plain_images == "batch":
            # Differs from the paper, as the authors' code does: the whole batch once more in a forward of its own.
            rows = self.encoder(torch.cat(views))
            chosen = is_old.to(rows.device)
            return rows.chunk(len(views)), batch.plain[chosen], self.encoder(batch.plain)[chosen]
        # One forward for views and plain old images, so that these have the statistics of a whole batch.
        # A plain image is in the batch-norm group of its view.
        own = torch.arange(len(is_old), device=views[0].device)
        shown = [own[is_old.to(own.device)]] if len(batch.plain) else []
        with placed(self.encoder, torch.cat([*(own for _ in views), *shown]) if shown else None):
            rows = self.encoder(torch.cat([*views, batch.plain]))  # (views·N + M, D)
        return rows[:num_rows].chunk(len(views)), batch.plain, rows[num_rows:]

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """L = λ₁ L_contrast + λ₂ L_ESQ + λ₃ L_kd. Paper: eq. 5."""
        weights = self.weights if self.has_past else {CONTRAST: 1.0}
        return torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()

    def sync_gradients(self) -> None:
        """Average gradients over ranks, and batch norm's running statistics, which each rank has of its own groups."""
        if ranks.size() == 1:
            return
        gradients = [parameter.grad for parameter in self.encoder.parameters() if parameter.grad is not None]
        statistics = [buffer for name, buffer in self.named_buffers() if name.endswith(("running_mean", "running_var"))]
        ranks.average([*gradients, *statistics])

    def after_update(self, context: BatchContext) -> None:
        """The student has moved: copies follow, queues take their keys."""
        self.objective.after_update(self.encoder, context.contrast, context.batch.ids)
        for part in self.parts:
            part.after_update(context)

    def end_epoch(self) -> None:
        """An epoch has ended."""
        for part in self.parts:
            part.end_epoch(self.encoder)
