"""Processes that do tasks ahead of time, answered in order; one that dies or hangs is noticed and said in a line."""

import io
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ccl.data.decoding import BadImageError
from ccl.errors import UserError

Task = TypeVar("Task")
Answer = TypeVar("Answer")
_Reply = tuple[Any, Exception | None]  # an answer, or why there is none
_Waiting = queue.SimpleQueue[tuple[Any, "Future[_Reply]"] | None]

_AHEAD = 2  # tasks for each worker that are asked for before their answers are needed
_LOOK = 1.0  # seconds between two looks at workers that are waited for
_KILLED = 5.0  # seconds in which a process that is killed is gone
_STOPPED_LOOKS = 5  # in a row at which a worker is stopped: one that a debugger looks into is so for a moment
_IDLE_LOOKS = 1800  # in a row between which a busy one used no processor: slow disks and stores take minutes

# Called at each look while an answer is waited for; whoever must leave in the middle of that raises.
while_waiting: list[Callable[[], None]] = []


class LostWorkerError(ConnectionError):
    """A worker died or does not answer; what was saved is good."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a loader worker {what}; set data.workers=0 or fewer, and the same command resumes")


class WorkerPool(Generic[Task, Answer]):
    """Differs from torch's DataLoader, which waits for a stopped process for ever, raises after a kill wherever the
    main thread is, and needs shared memory, of which containers have little."""

    def __init__(self, work: Callable[[Task], Answer], num_workers: int) -> None:
        self._workers, self._waiting = [_Worker(work) for _ in range(num_workers)], _Waiting()
        for worker in self._workers:
            threading.Thread(target=_drive, args=(worker, self._waiting), daemon=True).start()
        # Also before the interpreter waits for its processes at its end.
        self._end = util.Finalize(self, _end, (self._workers, self._waiting), exitpriority=10)

    @property
    def is_open(self) -> bool:
        """Whether it can take tasks; an error and a round left in the middle close it."""
        return self._end.still_active()

    def close(self) -> None:
        """Kill the processes."""
        self._end()

    def map(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """The answer to each task, in order."""
        left, due = iter(tasks), deque[Future[_Reply]]()
        try:
            while True:
                for task in islice(left, _AHEAD * len(self._workers) - len(due)):
                    due.append(Future())
                    self._waiting.put((task, due[-1]))
                if not due:
                    return
                answer, error = self._awaited(due.popleft())
                if error is not None:
                    raise error
                yield answer
        except BaseException as error:
            if due or not isinstance(error, GeneratorExit):
                self.close()
            raise

    def _awaited(self, future: "Future[_Reply]") -> _Reply:
        while True:
            try:
                return future.result(_LOOK)
            except TimeoutError:
                for worker in self._workers:
                    worker.look()
            except (EOFError, OSError) as error:  # a connection broke: the process is about to end
                for worker in self._workers:
                    worker.process.join(_KILLED if worker.is_busy else 0)
                    worker.look()
                raise LostWorkerError("can't be reached") from error
            for hook in while_waiting:
                hook()


class _Worker:
    """A process, this end of its connection, and what was seen of it."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=_serve, args=(work, other, self.connection))
        self.process.start()
        other.close()
        self.is_busy = False
        self._used, self._looks = 0, 0  # processor time when last seen, and how often it was the same

    def look(self) -> None:
        """Raise LostWorkerError where it is gone or hangs."""
        if (code := self.process.exitcode) is not None:
            hint = "; out of memory?" if code == -signal.SIGKILL else ""
            raise LostWorkerError(f"ended with exit code {code}" if code >= 0 else f"was killed (signal {-code}{hint})")
        state, used = self._state()
        self._looks = self._looks + 1 if self.is_busy and used == self._used else 0
        self._used = used
        if self._looks >= (_STOPPED_LOOKS if state in ("T", "t") else _IDLE_LOOKS):
            raise LostWorkerError(f"(process {self.process.pid}) does not answer")

    def _state(self) -> tuple[str, int]:
        """Linux's letter for it ("T": stopped) and its processor time; elsewhere a time that never stands still."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return words[0], int(words[11]) + int(words[12])
        except (OSError, LookupError, ValueError):
            return "", time.monotonic_ns()


def _drive(worker: _Worker, waiting: _Waiting) -> None:
    """A thread for each process, so that the main one never stands in a connection that nobody reads."""
    while (item := waiting.get()) is not None:
        worker.is_busy = True
        task, future = item
        try:
            worker.connection.send_bytes(_packed(task))
            future.set_result(worker.connection.recv())
        except Exception as error:
            future.set_exception(error)
            return
        worker.is_busy = False


def _end(workers: list[_Worker], waiting: _Waiting) -> None:
    for worker in workers:
        waiting.put(None)
        worker.process.kill()  # it may be stopped; and it holds nothing but what it read
    for worker in workers:
        worker.process.join(_KILLED)


def _serve(work: Callable[[Any], Any], connection: Connection, other: Connection) -> None:
    """The worker's part: it ends with its parent, whatever that ends by."""
    other.close()  # a forked one would hold its own connection open
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the parent, which finishes its batch
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = os.getppid()
    while True:
        try:
            while not connection.poll(_LOOK):
                if os.getppid() != parent:
                    return
            task = connection.recv()
            try:
                reply: _Reply = (work(task), None)
            except Exception as error:
                kinds = (BadImageError, UserError, OSError)
                same = (kind(str(error)) for kind in kinds if isinstance(error, kind))
                reply = (None, next(same, RuntimeError("".join(traceback.format_exception(error)))))
            connection.send_bytes(_packed(reply))
        except (EOFError, OSError):
            return


class _Pickler(pickle.Pickler):
    """Tensors as arrays: by themselves they would go through shared memory."""

    def reducer_override(self, thing: object) -> Any:
        return (torch.from_numpy, (thing.numpy(),)) if isinstance(thing, Tensor) else NotImplemented


def _packed(thing: object) -> memoryview:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(thing)
    return file.getbuffer()
