"""Embeddings of the past are negatives too, of the contrast and of the distillation. PNR."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl import ranks
from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import cosine_distance, info_nce, nt_xent, pnr_nt_xent
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Retention
from ccl.retention.past import OF_DIRECTIONS, PUBLISHED, Predictor, own_distance, own_weight, past_distance
from ccl.section import Count, Section


class PastNegatives(Retention):
    """What PNR adds to the objective's own loss, in the objective's own kind. Cha et al., ICML 2024: csm9493/PNR.

    With negatives in a queue, a bank or the batch: the contrast is also pushed from a frozen copy's keys, and a
    predictor finds the copy's embedding among all of them. Without: CaSSLe's distillation, less a share of the distance
    to the past of the other view.
    """

    class Options(Section):
        queue_size: Count = 4096  # of the frozen copy's keys, where the objective has a queue or bank; authors': 65536
        hidden: Count = 512  # authors' code: 2048

    def __init__(
        self,
        encoder: Encoder,
        options: Options = Options(),
        *,
        temperature: float,
        objective_distance: str = "",
        objective_weight: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.distance = own_distance(None, objective_distance)
        self.weight = own_weight(self.distance, objective_distance, objective_weight)
        # Differs: the authors' copy evaluates until the first validation only.
        self.teacher = MomentumEncoder(encoder, momentum=1.0)
        # Differs: the authors give SimCLR's and BYOL's predictor raw projections; here it reads unit rows, as MoCo's
        # does. MoCo's student embeds one view, unless `moco_v2.symmetric`.
        self.predictor = Predictor(encoder.dim, options.hidden)
        self.has_negatives = self.distance == "info_nce"
        # Not the random start of the objective's queue, nor of the extra sample queue.
        self.queue = FeatureQueue(options.queue_size, encoder.dim, seed + 2) if self.has_negatives else None
        self.num_student_views = 1 if self.has_negatives else 2
        self._latest: list[Tensor] = []  # the copy's embeddings of this batch, between its loss and its update

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.teacher.reset(encoder)

    def loss(self, context: BatchContext) -> Tensor:
        views = context.batch.views[: len(context.student)]
        taught = self.teacher.embed(torch.cat(views))  # views·N rows
        is_unit = self.distance in OF_DIRECTIONS
        past = torch.split(taught.unit if is_unit else taught.projection, len(views[0]))  # (N, D) each
        present = [view.unit if is_unit else view.projection for view in context.student]
        predicted = [self.predictor(rows) for rows in present]
        self._latest = list(past)
        if context.contrast.negatives and self.queue is not None:
            return self._with_queues(context, self.queue.vectors, predicted, past)
        everyone = ranks.gather_together([*predicted, *past, *(present if self.has_negatives else ())])
        guesses, targets = everyone[: len(views)], everyone[len(views) : 2 * len(views)]
        if not self.has_negatives:
            return self._crossed(guesses, targets)
        first, second = everyone[2 * len(views) :]
        whole = pnr_nt_xent(first, second, guesses[0], guesses[1], targets[0], targets[1], self.temperature)
        return whole - nt_xent(first, second, self.temperature)

    def _with_queues(
        self, context: BatchContext, queue: Tensor, predicted: Sequence[Tensor], past: Sequence[Tensor]
    ) -> Tensor:
        """InfoNCE(q, k, Q ∪ Q⁻) + InfoNCE(n(h q), z⁻, Q ∪ Q⁻), less the objective's own InfoNCE(q, k, Q), Q by view."""
        contrast = context.contrast
        masks = contrast.ignore or (None,) * len(contrast.negatives)  # (N, K) each
        both = [torch.cat([own, queue]) for own in contrast.negatives]  # (K + K⁻, D) each
        wider = [mask if mask is None else F.pad(mask, (0, len(queue))) for mask in masks]  # (N, K + K⁻) each
        added = [
            info_nce(*pair, both[view], self.temperature, wider[view])
            - info_nce(*pair, contrast.negatives[view], self.temperature, masks[view])
            for view, pair in enumerate(contrast.pairs)
        ]
        which = [view if view < len(both) else 0 for view in range(len(predicted))]
        kept = [
            info_nce(F.normalize(guess, dim=1), target, both[own], self.temperature, wider[own])
            for guess, target, own in zip(predicted, past, which, strict=True)
        ]
        return torch.stack(added).mean() + torch.stack(kept).mean()

    def _crossed(self, predicted: Sequence[Tensor], past: Sequence[Tensor]) -> Tensor:
        """CaSSLe's term, and the published share of its like with the views crossed, which is pushed away from."""
        own = past_distance(self.distance, predicted, past, self.temperature, self.weight)
        other = past[::-1]
        if self.distance == "barlow":  # the cosine of views crossed
            pairs = zip(predicted, other, strict=True)
            share = self.weight / PUBLISHED["barlow"]
            return own + share * torch.stack([1.0 - cosine_distance(*pair) / 2.0 for pair in pairs]).mean()
        share = {"cosine": 0.5, "mse": 23.0 / 25.0}[self.distance]
        return own - share * past_distance(self.distance, predicted, other, self.temperature, self.weight)

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        if self.queue is not None and context.contrast.negatives:
            for keys in ranks.gather_together(self._latest):
                self.queue.push(keys, context.batch.all_ids)
        self._latest = []
