"""MoCo v2: a query against its key and a queue of past keys."""

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.objectives.contrast import Contrast
from ccl.seeding import permutation
from ccl.views import ViewBatch


class MoCoV2(nn.Module):
    """Paper: §MoCoV2. The key encoder and the queue go on over the steps."""

    num_views = 2
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

    def begin_step(self, encoder: nn.Module, ids: Tensor, step: int) -> None:
        # Differs: the authors' code restarts the key encoder at every step; `reset_key_encoder` does that.
        if self.reset_key_encoder:
            self.key_encoder.reset(encoder)

    def contrast(self, student: tuple[Tensor, ...], batch: ViewBatch, moment: tuple[int, int]) -> Contrast:
        (query,) = student  # (N, D)
        keys = self._embed_keys(batch, moment)  # (N, D)
        ignore = self.queue.same_image(batch.ids) if self.mask_same_image else None  # (N, K)
        loss = info_nce(query, keys, self.queue.vectors, self.temperature, ignore)
        return Contrast(loss, query, ((query, keys),), keys)

    def _embed_keys(self, batch: ViewBatch, moment: tuple[int, int]) -> Tensor:
        """Keys of the second view, shuffled across the groups of a split batch norm, and so across ranks, and back."""
        views = ranks.gather(batch.views[1])  # (N of all ranks, 3, S, S)
        order = permutation(ranks.gather(batch.ids), self.seed, "shuffle keys", *moment).to(views.device)
        shuffled: Tensor = ranks.gather(self.key_encoder(views[ranks.share(order)]))
        return ranks.share(shuffled[torch.argsort(order)])  # (N, D)

    def after_update(self, encoder: nn.Module, contrast: Contrast, ids: Tensor) -> None:
        self.key_encoder.follow(encoder)
        self.queue.push(ranks.gather(contrast.keys), ranks.gather(ids))
