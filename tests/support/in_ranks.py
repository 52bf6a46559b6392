"""Run a function of a test module in several processes that are one learner, and bring back what each found."""

import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from ccl import ranks


def in_ranks(
    num_ranks: int, task: Callable[..., Any], *arguments: Any, folder: Path, seconds: float = 240
) -> list[Any]:
    """What `task(*arguments)` returns on each rank; one that hangs or fails is a failure here."""
    context = mp.get_context("spawn")
    port = _free_port()
    workers = [
        context.Process(target=_work, args=(number, num_ranks, port, folder, task, arguments))
        for number in range(num_ranks)
    ]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + seconds
    try:
        waiting = list(workers)
        while waiting:
            wait([worker.sentinel for worker in waiting], timeout=max(0.0, deadline - time.monotonic()))
            assert time.monotonic() < deadline, f"{num_ranks} ranks took more than {seconds} seconds"
            waiting = [worker for worker in waiting if worker.is_alive()]
            assert all(worker.exitcode in (None, 0) for worker in workers), [worker.exitcode for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return [torch.load(folder / f"{number}.pt", weights_only=False) for number in range(num_ranks)]


def _work(
    number: int, num_ranks: int, port: int, folder: Path, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    ranks.start("cpu")
    torch.save(task(*arguments), folder / f"{number}.pt")
    ranks.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
