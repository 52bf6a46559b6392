"""What every message has in common: it is counted, it may fail where a rank has ended, it lives on a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ccl.ranks.process_group import rank, size


@dataclass
class Traffic:
    """Messages in which this rank took part, and the bytes it received in them from others."""

    messages: int = 0
    received: float = 0.0  # of a sum: what a ring brings, 2 (W - 1) / W of its size; of `from_first`: not counted


_counters: list[Traffic] = []


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count the traffic of a block."""
    traffic = Traffic()
    _counters.append(traffic)
    try:
        yield traffic
    finally:
        _counters.pop()


@contextmanager
def talking(received: float = 0.0) -> Iterator[None]:
    """A message, in which this rank receives so many bytes."""
    for traffic in _counters:
        traffic.messages += 1
        traffic.received += received
    with losing():
        yield


@contextmanager
def losing() -> Iterator[None]:
    """A message fails where another rank has ended; that rank reports why."""
    try:
        yield
    except RuntimeError as error:
        about = str(error).splitlines()[0]
        raise ConnectionError(f"rank {rank()} has lost another rank ({about}); the last checkpoint is good") from error


def of_ring(message: Tensor) -> float:
    """Bytes that a rank receives while a ring adds up a message."""
    return 2 * (size() - 1) / size() * message.nbytes


def message_device() -> torch.device:
    """Where messages of the backend live."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
