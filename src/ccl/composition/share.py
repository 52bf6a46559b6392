"""A given share of old images in every batch: what most of the field means by replay."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ccl.composition.composition import Composition, EpochBatch
from ccl.data import epoch_batches
from ccl.section import Positive, Section
from ccl.seeding import permutation


class Share(Composition):
    """Each batch holds `old` · size old images, drawn from the memory in random order, again and again.

    With `most_repeats` the share is smaller where an old image would else be shown more often than that in an epoch: a
    small memory beside many new images then takes little of the batch, and is not learned by heart.
    `count` says how long an epoch is: "same_updates" has as many batches, of the same sizes, as pooled images would
    have, so that strategies can be compared at equal cost; "every_new_image" shows each new image exactly once.
    """

    class Options(Section):
        old: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5  # of each batch from the second step on
        # as many updates an epoch as pooled images have, or as many as show every new image once
        count: Literal["same_updates", "every_new_image"] = "same_updates"
        # an old image is shown at most so often an epoch, on average; None: no limit
        most_repeats: Positive | None = None

    def __init__(self, options: Options = Options()) -> None:
        self.old, self.count, self.most_repeats = options.old, options.count, options.most_repeats

    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        num_old = len(ids) - num_new
        if num_old == 0:
            return [EpochBatch.once(part) for part in epoch_batches(ids, batch_size, *context, multiple=multiple)]
        sizes = self._sizes(ids, num_new, batch_size, multiple, *context)  # (new, old) of each batch
        new_at, new_turns = cycled(ids[:num_new], sum(new for new, _ in sizes), *context, "batches")
        old_at, old_turns = cycled(ids[num_new:], sum(old for _, old in sizes), *context, "old images")
        parts = zip(
            *(torch.split(rows, [new for new, _ in sizes]) for rows in (new_at, new_turns)),
            *(torch.split(rows, [old for _, old in sizes]) for rows in (old_at + num_new, old_turns)),
            strict=True,
        )
        return [
            EpochBatch(torch.cat([new, old]), torch.cat([new_turn, old_turn])) for new, new_turn, old, old_turn in parts
        ]

    def _sizes(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[tuple[int, int]]:
        """How many new and old images each batch holds."""
        old = self.share_of_old(len(ids) - num_new, num_new)
        if self.count == "same_updates":
            pooled = epoch_batches(ids, batch_size, *context, multiple=multiple)
            return [(len(part) - round(old * len(part)), round(old * len(part))) for part in pooled]
        of_new = max(batch_size - round(old * batch_size), 1)  # new images of a full batch
        fresh = epoch_batches(ids[:num_new], max(of_new // multiple * multiple, multiple), *context, multiple=multiple)
        return [(len(part), _beside(len(part), old, multiple)) for part in fresh]

    def share_of_old(self, num_old: int, num_new: int) -> float:
        """The share of a batch, with so many images in the memory and in the step."""
        if self.most_repeats is None:
            return self.old
        shown = num_old * self.most_repeats  # old images of an epoch, at most
        all_shown = num_old + num_new if self.count == "same_updates" else shown + num_new
        return min(self.old, shown / all_shown)


def _beside(num_new: int, old: float, multiple: int) -> int:
    """How many old images stand beside so many new ones, in whole multiples."""
    return round(num_new * old / (1 - old) / multiple) * multiple


def cycled(ids: Tensor, count: int, *context: int | str) -> tuple[Tensor, Tensor]:
    """Positions of images in random order, again and again in new orders, and the turn of each: (count,) both."""
    orders, num_cycles = [], -(-count // len(ids))
    for cycle in range(num_cycles):
        again = (f"again {cycle}",) if cycle else ()  # the first order is the one that an epoch without repeats has
        orders.append(permutation(ids, *context, *again))
    empty = torch.zeros(0, dtype=torch.int64)
    turns = torch.arange(num_cycles).repeat_interleave(len(ids))
    return torch.cat([empty, *orders])[:count], turns[:count]
