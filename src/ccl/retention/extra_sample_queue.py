"""The extra sample queue: keep new images away from the place of the old."""

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Encoder
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Retention


class ExtraSampleQueue(Retention):
    """A small queue of old images' keys only; every query, old or new, is contrasted with its own key against it.

    Paper: §Extra Sample Queue.
    """

    def __init__(
        self, size: int, dim: int, *, temperature: float, mask_same_image: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.mask_same_image = mask_same_image
        self.queue = FeatureQueue(size, dim, seed + 1)  # not the same random start as the objective's queue

    def loss(self, context: BatchContext) -> Tensor | None:
        negatives = self.queue.vectors  # (K, D)
        ignore = self.queue.same_image(context.batch.ids) if self.mask_same_image else None  # (N, K)
        pairs = context.contrast.pairs
        losses = [info_nce(query, key, negatives, self.temperature, ignore) for query, key in pairs]
        return torch.stack(losses).mean()

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        # As long as no image is old, each will soon be: their latest keys are the queue's first fill.
        chosen = context.is_old if context.has_old_images else torch.ones_like(context.is_old)
        at = ranks.places(len(chosen))[chosen]
        keys = context.contrast.keys[chosen.to(context.contrast.keys.device)]
        self.queue.push(ranks.gather(keys, at), ranks.gather(context.batch.ids[chosen], at))
