"""MoCo v2: a query against its key and a queue of past keys."""

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Embedded, Encoder, MomentumEncoder, SplitBatchNorm
from ccl.encoders.momentum_encoder import rising_momentum
from ccl.losses import info_nce
from ccl.memory import FeatureQueue
from ccl.part import BatchContext, Contrast, Objective
from ccl.section import Count, Fraction, Section
from ccl.seeding import permutation
from ccl.views import ViewBatch


class MoCoV2(Objective):
    """Paper: §MoCoV2. The key encoder and the queue carry over from step to step.

    Differs: the authors' code restarts the key encoder at every step. With `symmetric` the loss is the mean of both.
    """

    class Options(Section):
        queue_size: Count = 4096  # keys that are negatives
        key_momentum: Fraction = 0.99  # of the key encoder, per update
        # at the end of each step, by a cosine; None: the same; MoCoV2+: 0.999
        final_key_momentum: Fraction | None = None
        mask_same_image: bool = False  # leave an image's own earlier keys out of its negatives
        symmetric: bool = False  # MoCoV2+: both views are queries, each against a queue of the other's keys

    num_student_views = 1

    def __init__(self, encoder: Encoder, options: Options = Options(), *, temperature: float, seed: int = 0) -> None:
        super().__init__()
        self.options = options
        self.temperature = temperature
        self.seed = seed
        self.key_encoder = MomentumEncoder(encoder, options.key_momentum, batch_statistics=True)
        self.queue = FeatureQueue(options.queue_size, encoder.dim, seed)  # keys of the second view
        self.is_split = any(isinstance(module, SplitBatchNorm) for module in encoder.modules())
        if options.symmetric:
            self.num_student_views = 2
            # Two queues, as MoCoV2+ has: each then reaches as far back as the one of MoCo v2 does.
            self.first_view_queue = FeatureQueue(options.queue_size, encoder.dim, seed + 3)  # another random start

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        views = (1, 0) if self.options.symmetric else (1,)
        embedded = self._embed_keys(batch, views, moment)  # (N of all ranks, D) each
        # Each view with its key, which is of the other view: (N, D), (N, D).
        pairs = tuple((view.unit, ranks.own(keys)) for view, keys in zip(student, embedded, strict=True))
        queues = [self.queue, *([self.first_view_queue] if self.options.symmetric else [])]
        negatives = tuple(queue.vectors for queue in queues)  # (K, D) each
        # Where a queue holds a key of the query's own image, (N, K) each, if that is to be left out.
        ignore = tuple(queue.same_image(batch.ids) for queue in queues) if self.options.mask_same_image else ()
        losses = [
            info_nce(*pair, negatives[view], self.temperature, ignore[view] if ignore else None)
            for view, pair in enumerate(pairs)
        ]
        loss = sum(losses[1:], losses[0]) / len(losses)
        query, keys = pairs[0]
        return Contrast(loss, query, pairs, keys, negatives=negatives, ignore=ignore, all_keys=embedded[0])

    def _embed_keys(self, batch: ViewBatch, views: tuple[int, ...], moment: tuple[int, int]) -> list[Tensor]:
        """Keys of all ranks, (N of all ranks, D), of each of these views, computed shuffled across groups and ranks."""
        if ranks.size() == 1 and not self.is_split:
            return [self.key_encoder(batch.views[view]) for view in views]  # one group holds all, in whatever order
        order = permutation(batch.all_ids, self.seed, "shuffle keys", *moment)  # (N of all ranks,)
        shuffled = ranks.exchange([batch.views[view] for view in views], order)  # (N, 3, S, S) each
        # All of them come back to every rank, which stores them in its queue.
        keys = ranks.gather_together([self.key_encoder(part) for part in shuffled])
        back = torch.argsort(order).to(keys[0].device)
        return [part[back] for part in keys]

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        first, last = self.options.key_momentum, self.options.final_key_momentum
        self.key_encoder.follow(encoder, rising_momentum(first, first if last is None else last, context.done))
        ids = context.batch.all_ids
        self.queue.push(context.all_keys, ids)
        if self.options.symmetric:
            _, (_, other_keys) = context.contrast.pairs
            self.first_view_queue.push(ranks.gather(other_keys), ids)
