"""The extra sample queue: further negatives that keep new images apart from old ones."""

import torch
from torch import Tensor

from ccl.encoders import Encoder
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Retention
from ccl.section import Count, Section


class ExtraSampleQueue(Retention):
    """Every query, old or new, is told from a small queue of old images' keys only. Paper: §Extra Sample Queue."""

    class Options(Section):
        size: Count = 128  # authors' code: 256
        mask_same_image: bool = False  # leave an image's own keys out of its negatives

    def __init__(self, dim: int, options: Options = Options(), *, temperature: float, seed: int = 0) -> None:
        super().__init__()
        self.temperature = temperature
        self.mask_same_image = options.mask_same_image
        self.queue = FeatureQueue(options.size, dim, seed + 1)  # not the same random start as the objective's queue

    def loss(self, context: BatchContext) -> Tensor | None:
        negatives = self.queue.vectors  # (K, D)
        ignore = self.queue.same_image(context.batch.ids) if self.mask_same_image else None  # (N, K)
        pairs = context.contrast.pairs
        losses = [info_nce(query, key, negatives, self.temperature, ignore) for query, key in pairs]
        return torch.stack(losses).mean()

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        # As long as no image is old, each will soon be: their latest keys are the queue's first fill.
        chosen = context.all_old if context.has_old_images else torch.ones_like(context.all_old)
        rows = chosen.nonzero().flatten()  # (M of all ranks,)
        self.queue.push(context.all_keys[rows.to(context.all_keys.device)], context.batch.all_ids[rows])
