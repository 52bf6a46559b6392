"""Processes answer in order, and one that is lost is told from one that is slow."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ccl.data.decoding import BadImageError
from ccl.errors import UserError
from ccl.views import worker_pool
from ccl.views.worker_pool import LostWorkerError, WorkerPool

_SOON = 0.05


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_LOOK", _SOON)


def _square(number: Tensor) -> Tensor:
    return number * number


def _process(_: int) -> int:
    return os.getpid()


def _fail(error: Exception) -> None:
    raise error


def test_answers_come_in_order_and_large_ones_block_nobody() -> None:
    pool = WorkerPool(_square, 3)
    tasks = [torch.full((1_000_000,), number) for number in range(12)]  # far beyond what a connection holds
    for _ in range(2):
        assert [int(answer[0]) for answer in pool.map(tasks)] == [number**2 for number in range(12)]
        assert pool.is_open
    left = pool.map(tasks)
    next(left)
    del left
    assert not pool.is_open  # what is under way has no reader


@pytest.mark.parametrize("error", [BadImageError("a.png: it is cut off"), UserError("no"), OSError("gone")])
def test_an_error_of_a_task_is_the_same_here(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        list(WorkerPool(_fail, 1).map([error]))
    with pytest.raises(RuntimeError, match="in _fail"):
        list(WorkerPool(_fail, 1).map([LookupError("ours")]))


def _hit(how: signal.Signals, seconds: float, task: int) -> None:
    """The process of the first task is hit while it works on it."""
    if task == 0:
        os.kill(os.getpid(), how)
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (signal.SIGKILL, r"a loader worker was killed \(signal 9; out of memory\?\); set data.workers=0 or fewer"),
        (signal.SIGUSR1, r"was killed \(signal 10\)"),
        (signal.SIGSTOP, r"\(process \d+\) does not answer; set data.workers=0 or fewer, and the same command resumes"),
    ],
)
def test_a_lost_worker_is_noticed_and_the_others_end(how: signal.Signals, told: str) -> None:
    pool = WorkerPool(partial(_hit, how, 0.0), 2)
    processes = [worker.process for worker in pool._workers]
    with pytest.raises(LostWorkerError, match=told):
        list(pool.map(range(8)))
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGCONT])
def test_a_slow_worker_and_the_signals_of_a_terminal_are_no_loss(how: signal.Signals) -> None:
    assert len(list(WorkerPool(partial(_hit, how, 20 * _SOON), 2).map(range(2)))) == 2


def test_a_worker_that_is_stopped_for_a_moment_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_STOPPED_LOOKS", 40)
    pool = WorkerPool(partial(_hit, signal.SIGSTOP, 0.0), 1)
    (process,) = (worker.process.pid or 0 for worker in pool._workers)
    threading.Timer(0.5, os.kill, (process, signal.SIGCONT)).start()
    assert len(list(pool.map(range(3)))) == 3


@pytest.fixture
def hook() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = [*worker_pool.while_waiting]
    yield worker_pool.while_waiting.append
    worker_pool.while_waiting[:] = before


def test_who_waits_can_leave(hook: Callable[[Callable[[], None]], None]) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    hook(leave)
    pool = WorkerPool(time.sleep, 1)
    with pytest.raises(KeyboardInterrupt):
        list(pool.map([60]))
    assert not pool.is_open


def test_workers_end_with_a_parent_that_is_killed() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        pids = next(WorkerPool(_process, 1).map(range(4)))
        os.write(write, str(pids).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    worker = Path(f"/proc/{int(os.read(read, 20))}")
    for handle in (read, write):
        with suppress(OSError):
            os.close(handle)
    deadline = time.monotonic() + 10
    while worker.exists() and worker.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(_SOON)
