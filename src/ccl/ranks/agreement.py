"""How ranks come to the same means, numbers and answers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ccl.errors import UserError
from ccl.ranks.messages import losing, message_device, of_ring, talking
from ccl.ranks.process_group import is_first, size

Answer = TypeVar("Answer")


def total(values: Tensor) -> Tensor:
    """The sum over all ranks, without gradient."""
    if size() == 1:
        return values
    message = values.detach().to(message_device(), copy=True)
    with talking(of_ring(message)):
        dist.all_reduce(message)
    return message.to(values.device)


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all ranks, in one message."""
    begin_average(tensors)()


@torch.no_grad()
def begin_average(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Begin to replace each tensor by its mean over all ranks, in one message; what is returned waits and does it."""
    if size() == 1 or not tensors:
        return lambda: None
    flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors]).to(message_device())
    with talking(of_ring(flat)):
        message = dist.all_reduce(flat, async_op=True)

    @torch.no_grad()
    def finish() -> None:
        with losing():
            message.wait()
        means = torch.split(flat.div_(size()), [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    return finish


def any_of(claim: bool) -> bool:
    """Whether the claim holds on any rank."""
    return bool(largest(int(claim))[0])


def largest(*numbers: int) -> list[int]:
    """Each number's largest value over the ranks, in one message."""
    if size() == 1:
        return list(numbers)
    message = torch.tensor(numbers, device=message_device())
    with talking(of_ring(message)):
        dist.all_reduce(message, dist.ReduceOp.MAX)
    return [int(number) for number in message.tolist()]


def from_first(answer: Callable[[], Answer]) -> Answer:
    """The first rank's answer, on every rank; the others don't compute one. It must be a plain value or CPU tensor.

    A refusal is an answer too: where the first rank raises a UserError, all of them do.
    """
    if size() == 1:
        return answer()
    box: list[Any] = [_answered(answer) if is_first() else None]
    with talking():
        dist.broadcast_object_list(box, src=0, device=message_device())
    if isinstance(box[0], UserError):
        raise box[0]
    found: Answer = box[0]
    return found


def _answered(answer: Callable[[], Answer]) -> Answer | UserError:
    try:
        return answer()
    except UserError as refusal:
        return refusal


def wait() -> None:
    """Until every rank has come here."""
    any_of(False)
