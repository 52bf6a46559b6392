"""Run a function of a test module in several processes that are one learner, and bring back what each found."""

import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import FORKED

from ccl import ranks


def in_ranks(
    num_ranks: int, task: Callable[..., Any], *arguments: Any, folder: Path, seconds: float = 240
) -> list[Any]:
    """What `task(*arguments)` returns on each rank; one that hangs or fails is a failure here."""
    port = free_port()
    workers = [
        FORKED.Process(target=_work, args=(number, num_ranks, port, folder, task, arguments))
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


def assert_equal_outcomes(one: dict[str, Any], spread: list[dict[str, Any]]) -> None:
    """That ranks agree to the bit, and with one process to rounding."""
    for name, value in spread[0]["state"].items():
        assert all(torch.equal(value, other["state"][name]) for other in spread[1:]), f"ranks differ in {name}"
    first = spread[0]
    assert len(one["losses"]) == len(first["losses"])
    for number, (mine, theirs) in enumerate(zip(one["losses"], first["losses"], strict=True)):
        # Each update multiplies what rounding did to the last one: on some CPUs the sixth loss differs by 1.1e-5.
        assert theirs == pytest.approx(mine, rel=3e-6 if number < 3 else 1e-4), number
    assert [other["files"] for other in spread] == [one["files"]] * len(spread)
    assert torch.equal(one["ids"], first["ids"])
    for name, value in one["state"].items():
        # A weight before batch norm has hardly a gradient of its own: rounding is what moves it, by up to 2e-4.
        torch.testing.assert_close(first["state"][name], value, atol=1e-3, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def _work(
    number: int, num_ranks: int, port: int, folder: Path, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= rank_environment(number, num_ranks, port)
    torch.set_num_threads(1)
    ranks.start("cpu")
    torch.save(task(*arguments), folder / f"{number}.pt")
    ranks.stop()


def rank_environment(number: int, num_ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a process of one machine."""
    own = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(num_ranks)}
    return own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
