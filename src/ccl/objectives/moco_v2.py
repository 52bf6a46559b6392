"""MoCo v2: a query against its key and a queue of past keys."""

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Embedded, Encoder, MomentumEncoder
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Contrast, Objective
from ccl.seeding import permutation
from ccl.views import ViewBatch


class MoCoV2(Objective):
    """Paper: §MoCoV2. The key encoder and the queue carry over from step to step."""

    num_student_views = 1

    def __init__(
        self,
        encoder: Encoder,
        *,
        queue_size: int,
        key_momentum: float,
        temperature: float,
        seed: int = 0,
        reset_key_encoder: bool = False,
        mask_same_image: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.seed = seed
        self.reset_key_encoder = reset_key_encoder
        self.mask_same_image = mask_same_image
        self.key_encoder = MomentumEncoder(encoder, key_momentum, batch_statistics=True)
        self.queue = FeatureQueue(queue_size, encoder.dim, seed)

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        # Differs: the authors' code restarts the key encoder at every step; `reset_key_encoder` does that.
        if self.reset_key_encoder:
            self.key_encoder.reset(encoder)

    def contrast(self, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]) -> Contrast:
        query = student[0].unit  # (N, D)
        keys = self._embed_keys(batch, moment)  # (N, D)
        ignore = self.queue.same_image(batch.ids) if self.mask_same_image else None  # (N, K)
        loss = info_nce(query, keys, self.queue.vectors, self.temperature, ignore)
        return Contrast(loss, query, ((query, keys),), keys, self.queue.vectors, ignore)

    def _embed_keys(self, batch: ViewBatch, moment: tuple[int, int]) -> Tensor:
        """Keys of the second view, shuffled across the groups of a split batch norm, and so across ranks, and back."""
        views = ranks.gather(batch.views[1])  # (N of all ranks, 3, S, S)
        order = permutation(ranks.gather(batch.ids), self.seed, "shuffle keys", *moment).to(views.device)
        shuffled: Tensor = ranks.gather(self.key_encoder(views[ranks.share(order)]))
        return ranks.share(shuffled[torch.argsort(order)])  # (N, D)

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.key_encoder.follow(encoder)
        self.queue.push(ranks.gather(context.contrast.keys), ranks.gather(context.batch.ids))
