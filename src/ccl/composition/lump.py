"""Each new image is mixed with an old one, pixel by pixel, before the student sees it. LUMP."""

import zlib

import numpy as np
from torch import Tensor

from ccl.composition.composition import Composition, EpochBatch
from ccl.composition.share import mixed_batches
from ccl.data import epoch_batches
from ccl.section import Positive, Section
from ccl.seeding import hashed
from ccl.views import ViewBatch


class Lump(Composition):
    """λ · new + (1 − λ) · old in every view, one λ ~ Beta(alpha, alpha) for a batch. Madaan et al., ICLR 2022."""

    # Differs: the authors keep images from the first batch on, and so mix within the first step too; their partner's
    # first view is cropped and mirrored only, and its second the one it had when it was kept. Here the memory is of
    # earlier steps, and every view is fresh. Their learning rate never falls: `optimizer.schedule: constant`.
    is_mixed = True

    class Options(Section):
        alpha: Positive = 0.4  # the mixing weight of a batch is drawn from Beta(alpha, alpha)

    def __init__(self, options: Options = Options(), *, seed: int = 0) -> None:
        self.alpha, self.seed = options.alpha, seed

    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        plain = epoch_batches(ids, batch_size, *context, multiple=multiple)
        if len(ids) == num_new:
            return [EpochBatch.once(positions) for positions in plain]
        sizes = [len(part) for part in plain]
        # Sizes are multiples of the ranks, so that image n and its partner at n + size belong to the same rank.
        return mixed_batches(ids, num_new, sizes, sizes, *context)

    def mix(self, batch: ViewBatch, num_new: int, moment: tuple[int, int]) -> ViewBatch:
        """Half as many images, with ids, positions and turns of the new ones; without old images the batch as it is."""
        is_old, half = batch.positions >= num_new, len(batch.positions) // 2
        if len(is_old) % 2 or bool(is_old[:half].any()) or not bool(is_old[half:].all()) or half == 0:
            return batch
        num_pairs = len(batch.all_ids) // 2
        everyone = batch.all_positions[:num_pairs], batch.all_ids[:num_pairs]
        # The images name the batch, the same on all ranks.
        content = zlib.crc32(everyone[1].numpy().tobytes())
        draw = np.random.default_rng(hashed(self.seed, "lump", *moment, content))
        share = float(draw.beta(self.alpha, self.alpha))
        views = tuple(share * view[:half] + (1.0 - share) * view[half:] for view in batch.views)
        turns = None if batch.turns is None else batch.turns[:half]
        return ViewBatch(batch.positions[:half], batch.ids[:half], views, batch.plain[:0], everyone, turns)
