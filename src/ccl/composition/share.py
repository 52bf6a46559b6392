"""A given share of old images in every batch."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ccl.composition.composition import Composition, EpochBatch
from ccl.data import epoch_batches
from ccl.section import Positive, Section
from ccl.seeding import permutation


class Share(Composition):
    """Each batch holds `old` · size old images, drawn from the memory in random order, again and again.

    With `most_repeats` the share is smaller where an old image would else be shown more often than that in an epoch.
    An epoch has as many batches, of the same sizes, as pooled images would have: strategies compare at equal cost.
    """

    class Options(Section):
        old: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5  # of each batch from the second step on
        # an old image is shown at most so often an epoch, on average; None: no limit
        most_repeats: Positive | None = None

    def __init__(self, options: Options = Options()) -> None:
        self.old, self.most_repeats = options.old, options.most_repeats

    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        pooled = epoch_batches(ids, batch_size, *context, multiple=multiple)
        num_old = len(ids) - num_new
        if num_old == 0:
            return [EpochBatch.once(part) for part in pooled]
        share = self.old
        if self.most_repeats is not None:
            share = min(share, num_old * self.most_repeats / len(ids))
        old = [round(share * len(part)) for part in pooled]  # of each batch
        new = [len(part) - count for part, count in zip(pooled, old, strict=True)]
        return mixed_batches(ids, num_new, new, old, *context)


def mixed_batches(ids: Tensor, num_new: int, new: list[int], old: list[int], *context: int) -> list[EpochBatch]:
    """Batches of so many new and so many old images each, the new ones first; both in random order, again and again."""
    new_at, new_turns = _cycled(ids[:num_new], sum(new), *context, "batches")
    old_at, old_turns = _cycled(ids[num_new:], sum(old), *context, "old images")
    parts = zip(
        *(torch.split(rows, new) for rows in (new_at, new_turns)),
        *(torch.split(rows, old) for rows in (old_at + num_new, old_turns)),
        strict=True,
    )
    return [
        EpochBatch(torch.cat([fresh, past]), torch.cat([fresh_turn, past_turn]))
        for fresh, fresh_turn, past, past_turn in parts
    ]


def _cycled(ids: Tensor, count: int, *context: int | str) -> tuple[Tensor, Tensor]:
    """Positions of images in random order, again and again in new orders, and the turn of each: (count,) both."""
    orders, num_cycles = [], -(-count // len(ids))
    for cycle in range(num_cycles):
        again = (f"again {cycle}",) if cycle else ()  # the first order is the one that an epoch without repeats has
        orders.append(permutation(ids, *context, *again))
    empty = torch.zeros(0, dtype=torch.int64)
    turns = torch.arange(num_cycles).repeat_interleave(len(ids))
    return torch.cat([empty, *orders])[:count], turns[:count]
