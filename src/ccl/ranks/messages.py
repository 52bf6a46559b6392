"""Messages between ranks: numbers, answers and the rows of a batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ccl.errors import UserError
from ccl.ranks.process_group import is_first, rank, size

Answer = TypeVar("Answer")


@contextmanager
def _rank_may_be_lost() -> Iterator[None]:
    """A message fails where another rank has ended; that rank reports why."""
    try:
        yield
    except RuntimeError as error:
        about = str(error).splitlines()[0]
        raise ConnectionError(f"rank {rank()} has lost another rank ({about}); the last checkpoint is good") from error


def _device() -> torch.device:
    """The device on which the backend's messages must lie."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def total(values: Tensor) -> Tensor:
    """The sum over all ranks, without gradient."""
    if size() == 1:
        return values
    message = values.detach().to(_device(), copy=True)
    with _rank_may_be_lost():
        dist.all_reduce(message)
    return message.to(values.device)


@torch.no_grad()
def begin_average(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Begin to replace each tensor by its mean over all ranks, in one message; what is returned waits and does it."""
    if size() == 1 or not tensors:
        return lambda: None
    flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors]).to(_device())
    with _rank_may_be_lost():
        message = dist.all_reduce(flat, async_op=True)

    @torch.no_grad()
    def finish() -> None:
        with _rank_may_be_lost():
            message.wait()
        means = torch.split(flat.div_(size()), [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    return finish


def largest(*numbers: int) -> list[int]:
    """Each number's largest value over the ranks, in one message."""
    if size() == 1:
        return list(numbers)
    message = torch.tensor(numbers, device=_device())
    with _rank_may_be_lost():
        dist.all_reduce(message, dist.ReduceOp.MAX)
    return [int(number) for number in message.tolist()]


def from_first(answer: Callable[[], Answer]) -> Answer:
    """The first rank's answer, a plain value or CPU tensor, or its UserError, on every rank."""
    if size() == 1:
        return answer()
    box: list[Any] = [None]
    if is_first():
        try:
            box = [answer()]
        except UserError as refusal:
            box = [refusal]
    with _rank_may_be_lost():
        dist.broadcast_object_list(box, src=0, device=_device())
    if isinstance(box[0], UserError):
        raise box[0]
    found: Answer = box[0]
    return found


def wait() -> None:
    """Wait until every rank has made this call."""
    largest(0)


def own(rows: Tensor) -> Tensor:
    """This rank's part of rows that all ranks have."""
    return rows[rank() :: size()]


def exchange(several: Sequence[Tensor], order: Tensor) -> list[Tensor]:
    """This rank's share of a batch in another order, (N of all ranks,), of several kinds of rows in one message."""
    if size() == 1:
        return [rows[order.to(rows.device)] for rows in several]
    number, count, device = rank(), size(), several[0].device
    wanted = [order[other::count] for other in range(count)]  # places that each rank is to have
    sent = [places[places % count == number] // count for places in wanted]  # which of our rows each gets
    sources = wanted[number] % count
    ours = torch.cat(sent).to(device)
    message = torch.cat([rows[ours].flatten(1) for rows in several], dim=1).to(_device())
    received = torch.empty(len(sources), message.shape[1], dtype=message.dtype, device=message.device)
    counts = [int((sources == other).sum()) for other in range(count)]
    with _rank_may_be_lost():
        dist.all_to_all_single(received, message, counts, [len(part) for part in sent])
    back = torch.argsort(torch.argsort(sources, stable=True))  # rows come by rank
    parts = torch.split(received[back.to(received.device)].to(device), [rows[0].numel() for rows in several], dim=1)
    return [part.reshape(-1, *rows.shape[1:]) for part, rows in zip(parts, several, strict=True)]


def gather(rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The rows of all ranks in the order of their places, without gradient.

    `chosen` None: every rank gives its whole share of one batch, equally many. Else it says which places of a batch,
    (N of all ranks,), the rows are of; a rank gives those of its share, also none.
    """
    return rows if size() == 1 else _gathered(rows.detach(), chosen)[0]


def gather_together(several: Sequence[Tensor], chosen: Tensor | None = None) -> list[Tensor]:
    """As `gather`, of several kinds of rows in one message, with gradients; all ranks are to compute the same loss."""
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
        # Gradients are averaged over ranks at the end, though each rank holds its own rows' part of the sum only.
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
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    received = zip(_all_gathered(padded), counts, strict=True)
    order = torch.argsort(torch.cat(places)).to(rows.device)
    start = sum(counts[: rank()])
    found = torch.cat([part[:count] for part, count in received])
    return found[order], torch.argsort(order)[start : start + len(rows)]


def _all_gathered(part: Tensor) -> list[Tensor]:
    message = part.contiguous().to(_device())
    parts = [torch.empty_like(message) for _ in range(size())]
    with _rank_may_be_lost():
        dist.all_gather(parts, message)
    return [found.to(part.device) for found in parts]
