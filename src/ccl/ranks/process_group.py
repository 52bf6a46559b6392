"""Which processes there are, and how they find each other."""

import os
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ccl.errors import UserError

_PATIENCE = timedelta(hours=2)  # of ranks that wait while another reads, selects or fits
_MEETING = timedelta(minutes=10)  # of ranks that wait for others to start


def start(device_type: str) -> None:
    """Join the other processes that torchrun has started; nothing to do if it hasn't."""
    if not is_launched() or dist.is_initialized():
        return
    backend = "nccl" if device_type == "cuda" else "gloo"
    try:
        store, number, count = next(rendezvous("env://", timeout=_MEETING))
        fresh = fresh_store(store, number, count)
        dist.init_process_group(backend, store=fresh, rank=number, world_size=count, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the ranks can't find each other by {backend}: {str(error).splitlines()[0]}") from error


def fresh_store(store: Any, number: int, count: int) -> Any:
    """A part of the store that no earlier attempt has written to: torchrun keeps its store when it restarts ranks."""
    # Each rank names itself anew, and all take the part of the first that has read their present name.
    name, deadline = uuid4().hex, time.monotonic() + _MEETING.total_seconds()
    store.set(f"ccl/{number}", name)
    while time.monotonic() < deadline:
        if number == 0:
            store.set("ccl/all", " ".join([name, *(store.get(f"ccl/{other}").decode() for other in range(1, count))]))
            if store.add(f"{name}/met", 0) == count - 1:
                return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        elif name in (names := store.get("ccl/all").decode().split()):
            store.add(f"{names[0]}/met", 1)
            return dist.PrefixStore(names[0], store)  # type: ignore[attr-defined]
        time.sleep(0.01)
    raise RuntimeError(f"rank {number} waited for the others for {_MEETING}")


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_launched() -> bool:
    """Whether torchrun (or a launcher that sets its variables) has started this process beside others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Which of this machine's devices is ours."""
    return int(os.environ.get("LOCAL_RANK", "0")) if dist.is_initialized() or is_launched() else 0


def is_first() -> bool:
    """Whether this rank writes and shows; the others only work."""
    return rank() == 0
