"""How rows of a batch travel between ranks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ccl.ranks.messages import message_device, talking
from ccl.ranks.process_group import rank, size


def share(rows: Tensor) -> Tensor:
    """This rank's part of rows that all ranks have."""
    return rows[rank() :: size()]


def exchange(several: Sequence[Tensor], order: Tensor) -> list[Tensor]:
    """This rank's share of a batch in another order, (N of all ranks,), of several kinds of rows in one message.

    Each row goes only to the rank that is to have it.
    """
    if size() == 1:
        return [rows[order.to(rows.device)] for rows in several]
    number, count, device = rank(), size(), several[0].device
    wanted = [order[other::count] for other in range(count)]  # places that each rank is to have
    sent = [places[places % count == number] // count for places in wanted]  # which of our rows each gets
    sources = wanted[number] % count
    ours = torch.cat(sent).to(device)
    message = torch.cat([rows[ours].flatten(1) for rows in several], dim=1).to(message_device())
    received = torch.empty(len(sources), message.shape[1], dtype=message.dtype, device=message.device)
    counts = [int((sources == other).sum()) for other in range(count)]
    with talking((len(sources) - counts[number]) * received[:1].nbytes):
        dist.all_to_all_single(received, message, counts, [len(part) for part in sent])
    back = torch.argsort(torch.argsort(sources, stable=True))  # rows come by rank
    parts = torch.split(received[back.to(received.device)].to(device), [rows[0].numel() for rows in several], dim=1)
    return [part.reshape(-1, *rows.shape[1:]) for part, rows in zip(parts, several, strict=True)]


def gather(rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The rows of all ranks in the order of their places, without gradient.

    `chosen` None: every rank gives its whole share of one batch, equally many. Else all ranks know which places of a
    batch, (N of all ranks,), the rows are of; a rank gives those of its share, also none.
    """
    return rows if size() == 1 else _gathered(rows.detach(), chosen)[0]


def gather_together(several: Sequence[Tensor], chosen: Tensor | None = None) -> list[Tensor]:
    """As `gather`, of several kinds of rows in one message; the gradient of those that have one finds its way back.

    Every rank is to compute the same loss of all rows. Gradients are averaged over ranks at the end, though each holds
    only its own rows' part of the sum: a row's gradient is therefore multiplied by the number of ranks.
    """
    if size() == 1 or not several:
        return list(several)
    flat = [rows.flatten(1) for rows in several]
    found: Tensor = _Gather.apply(torch.cat(flat, dim=1), chosen)  # type: ignore[no-untyped-call]
    parts = zip(several, torch.split(found, [rows.shape[1] for rows in flat], dim=1), strict=True)
    whole = [(rows, part.reshape(len(found), *rows.shape[1:]).contiguous()) for rows, part in parts]
    return [part if rows.requires_grad else part.detach() for rows, part in whole]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, chosen: Tensor | None) -> Tensor:
        found, ctx.mine = _gathered(rows, chosen)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.mine] * size(), None


def _gathered(rows: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
    """All rows in order, and which of them are this rank's."""
    if chosen is None:
        parts = _all_gathered(rows)
        mine = torch.arange(len(rows), device=rows.device) * size() + rank()
        return torch.stack(parts, dim=1).flatten(0, 1), mine
    places = [torch.arange(len(chosen))[other :: size()][chosen[other :: size()]] for other in range(size())]
    counts = [len(part) for part in places]
    if not max(counts):
        return rows, torch.arange(0, device=rows.device)
    received = zip(_all_gathered(_padded(rows, max(counts))), counts, strict=True)
    order = torch.argsort(torch.cat(places)).to(rows.device)
    start = sum(counts[: rank()])
    found = torch.cat([part[:count] for part, count in received])
    return found[order], torch.argsort(order)[start : start + len(rows)]


def _all_gathered(part: Tensor) -> list[Tensor]:
    message = part.contiguous().to(message_device())
    parts = [torch.empty_like(message) for _ in range(size())]
    with talking((size() - 1) * message.nbytes):
        dist.all_gather(parts, message)
    return [found.to(part.device) for found in parts]


def _padded(rows: Tensor, length: int) -> Tensor:
    padded = rows.new_zeros(length, *rows.shape[1:])
    padded[: len(rows)] = rows
    return padded
