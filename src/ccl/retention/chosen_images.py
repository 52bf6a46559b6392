"""Which images of a batch a loss is about, and their rows of all ranks."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Embedded, MomentumEncoder
from ccl.part import BatchContext

Images = Literal["all", "new", "old"]


@dataclass(frozen=True)
class Chosen:
    """M of this rank's images."""

    rows: Tensor  # (M,): which of this rank's rows, on the device of embeddings
    mask: Tensor  # (N of all ranks,): which images of all ranks
    num: int  # images of all ranks

    def everywhere(self, *several: Tensor) -> list[Tensor]:
        """Rows (M, ·) of this rank's chosen images, of all ranks, in the batch's order; gradients find their way back.

        All that is needed of them is best asked for at once: it is one message.
        """
        return ranks.gather_together(several, self.mask)

    def past(self, teacher: MomentumEncoder, context: BatchContext) -> list[Embedded]:
        """What a copy makes of this rank's chosen images in each view that the student saw, M rows each."""
        shown = [view[self.rows] for view in context.batch.views[: len(context.student)]]
        return teacher.embed(torch.cat(shown)).split([len(view) for view in shown])


def choose(context: BatchContext, images: Images, fewest: int = 2) -> Chosen | None:
    """These images; None, on all ranks alike, where all together have fewer than `fewest`."""
    old = context.all_old
    return chosen_by({"all": torch.ones_like(old), "old": old, "new": ~old}[images], context, fewest)


def chosen_by(mask: Tensor, context: BatchContext, fewest: int = 1) -> Chosen | None:
    """The images where a mask (N of all ranks,) is True; None where these are fewer than `fewest`."""
    num = int(mask.sum())
    if num < fewest:
        return None
    return Chosen(ranks.own(mask).nonzero().flatten().to(context.contrast.query.device), mask, num)


def choose_stored(context: BatchContext, kind: str) -> tuple[Chosen, Tensor] | None:
    """The old images that have a stored vector of this kind, and the vectors of all ranks' such, (M of all, D)."""
    stored = context.stored.get(kind)
    if stored is None:  # the memory is the same on all ranks
        return None
    known = ~stored.isnan().any(dim=1)  # (old,): a memory may be older than the wish for vectors
    mask = context.all_old.clone()
    mask[context.all_old] = known
    chosen = chosen_by(mask, context)
    return None if chosen is None else (chosen, stored[known].to(chosen.rows.device))
