"""A limit for the rehearsal memory, in images or bytes: every step has an equal share, filled in a fixed order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ccl.seeding import permutation


@dataclass(frozen=True)
class Budget:
    """The most that the memory may hold, over the whole stream."""

    limit: int
    unit: Literal["images", "bytes"]

    def size(self, file: bytes) -> int:
        """What an image counts against the budget."""
        return 1 if self.unit == "images" else len(file)


def shares(limit: int, wanted: Sequence[int]) -> list[int]:
    """An equal share for each, but none above what it wants; what is left goes to the others, odd ones to the first."""
    left, level, num_open = limit, 0, len(wanted)
    for want in sorted(wanted):
        level = left // num_open
        if want > level:
            break
        left, num_open = left - want, num_open - 1
    else:
        return list(wanted)
    odd = left - level * num_open
    given = []
    for want in wanted:
        gets_more = want > level and odd > 0
        odd -= gets_more
        given.append(min(want, level) + gets_more)
    return given


def in_turns(scores: Tensor, clusters: Tensor, ids: Tensor, *context: int | str) -> Tensor:
    """Positions (N,) by what is kept longest: the lowest score of every cluster, then the second lowest of every one, …

    Within a turn lower scores come first. Equal scores, and nan for all, are in a random order that depends on the ids
    and the context only.
    """
    order = permutation(ids, *context)
    order = order[torch.argsort(scores[order], stable=True)]  # (N,)
    turns = torch.empty_like(order)
    for cluster in torch.unique(clusters):
        members = order[clusters[order] == cluster]
        turns[members] = torch.arange(len(members))
    return order[torch.argsort(turns[order], stable=True)]


def lowest_in_turns(scores: Tensor, clusters: Tensor, ids: Tensor, count: int, seed: int, step: int) -> Tensor:
    """The first `count` of `in_turns`."""
    return in_turns(scores, clusters, ids, seed, step)[:count]


def within(sizes: Iterable[int], share: int) -> list[int]:
    """Which of these, in order, fit in a share: up to the first for which too little is left; too large ones never."""
    taken, used = [], 0
    for number, size in enumerate(sizes):
        if size > share:
            continue
        if used + size > share:
            break
        taken.append(number)
        used += size
    return taken


def survivors(
    limit: int, sizes: Tensor, steps: Tensor, clusters: Tensor, scores: Tensor, ids: Tensor, *context: int | str
) -> Tensor:
    """Positions, ascending, of those that stay when each step of a memory (M,) is cut to its share."""
    members = {int(step): torch.nonzero(steps == step).flatten() for step in torch.unique(steps)}
    given = shares(limit, [int(sizes[here].sum()) for here in members.values()])
    kept = [torch.zeros(0, dtype=torch.long)]
    for (step, here), share in zip(members.items(), given, strict=True):
        order = here[in_turns(scores[here], clusters[here], ids[here], *context, step)]
        kept.append(order[within(sizes[order].tolist(), share)])
    return torch.cat(kept).sort().values
