"""MoCo v2: a query against its key and a queue of past keys."""

from typing import cast

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Embedded, Encoder, MomentumEncoder, SplitBatchNorm
from ccl.encoders.momentum_encoder import rising_momentum
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Contrast, Objective
from ccl.seeding import permutation
from ccl.views import ViewBatch


class MoCoV2(Objective):
    """Paper: §MoCoV2. The key encoder and the queue carry over from step to step.

    `symmetric` is MoCoV2+ (solo-learn): both views are queries, each against its key and the other view's past keys,
    and the loss is the mean of both. Over each step the key encoder's momentum rises to
    `final_key_momentum`, where there is one.
    """

    num_student_views = 1

    def __init__(
        self,
        encoder: Encoder,
        *,
        queue_size: int,
        key_momentum: float,
        final_key_momentum: float | None = None,
        temperature: float,
        seed: int = 0,
        reset_key_encoder: bool = False,
        mask_same_image: bool = False,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.seed = seed
        self.reset_key_encoder = reset_key_encoder
        self.mask_same_image = mask_same_image
        self.final_key_momentum = key_momentum if final_key_momentum is None else final_key_momentum
        self.key_encoder = MomentumEncoder(encoder, key_momentum, batch_statistics=True)
        self.queue = FeatureQueue(queue_size, encoder.dim, seed)  # keys of the second view
        self.symmetric = symmetric
        self.is_split = any(isinstance(module, SplitBatchNorm) for module in encoder.modules())
        if symmetric:
            self.num_student_views = 2
            # Two queues, as MoCoV2+ has: each then reaches as far back as the one of MoCo v2 does.
            self.first_view_queue = FeatureQueue(queue_size, encoder.dim, seed + 3)  # a random start of its own

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        # Differs: the authors' code restarts the key encoder at every step; `reset_key_encoder` does that.
        if self.reset_key_encoder:
            self.key_encoder.reset(encoder)

    def contrast(self, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]) -> Contrast:
        query = student[0].unit  # (N, D)
        keys = self._embed_keys(batch, 1, moment)  # (N, D)
        ignore = self._same_image(self.queue, batch)  # (N, K)
        loss = info_nce(query, keys, self.queue.vectors, self.temperature, ignore)
        if not self.symmetric:
            return Contrast(loss, query, ((query, keys),), keys, self.queue.vectors, ignore)
        other_query, other_keys = student[1].unit, self._embed_keys(batch, 0, moment)  # (N, D), (N, D)
        others, other_ignore = self.first_view_queue.vectors, self._same_image(self.first_view_queue, batch)
        loss = (loss + info_nce(other_query, other_keys, others, self.temperature, other_ignore)) / 2.0
        pairs = ((query, keys), (other_query, other_keys))
        negatives = torch.cat([self.queue.vectors, others])  # (2K, D)
        both = None if ignore is None or other_ignore is None else torch.cat([ignore, other_ignore], dim=1)
        return Contrast(loss, query, pairs, keys, negatives, both)

    def _same_image(self, queue: FeatureQueue, batch: ViewBatch) -> Tensor | None:
        """Where a queue holds a key of the query's own image, (N, K), if that is to be left out."""
        return queue.same_image(batch.ids) if self.mask_same_image else None

    def _embed_keys(self, batch: ViewBatch, view: int, moment: tuple[int, int]) -> Tensor:
        """Keys of a view, shuffled across the groups of a split batch norm, and so across ranks, and back."""
        if ranks.size() == 1 and not self.is_split:
            return cast(Tensor, self.key_encoder(batch.views[view]))  # one group holds all, in whatever order
        views = ranks.gather(batch.views[view])  # (N of all ranks, 3, S, S)
        order = permutation(ranks.gather(batch.ids), self.seed, "shuffle keys", *moment).to(views.device)
        shuffled: Tensor = ranks.gather(self.key_encoder(views[ranks.share(order)]))
        return ranks.share(shuffled[torch.argsort(order)])  # (N, D)

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        momentum = rising_momentum(self.key_encoder.momentum, self.final_key_momentum, context.done)
        self.key_encoder.follow(encoder, momentum)
        ids = ranks.gather(context.batch.ids)
        self.queue.push(ranks.gather(context.contrast.keys), ids)
        if self.symmetric:
            _, (_, other_keys) = context.contrast.pairs
            self.first_view_queue.push(ranks.gather(other_keys), ids)
