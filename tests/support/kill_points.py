"""Commands that are killed at their n-th call that changes a file, or in the middle of writing one.

A process is forked, counts what Python is asked to do to files below a folder (audit events, and `os.fsync`), and ends
at the n-th as a kill ends it. What it forks counts with it, and all end together.
"""

import mmap
import os
import re
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATHS = {"os.remove": (0, 1), "os.rmdir": (0, 1), "os.mkdir": (0, 2), "os.truncate": (0, None), "os.rename": (1, 3)}
_PATHS |= {"os.link": (1, 3), "os.symlink": (1, 2), "os.chmod": (0, 2), "os.utime": (0, 3)}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_PIDS = 64


@dataclass(frozen=True)
class Ended:
    """How the forked process ended."""

    count: int  # of calls that change a file
    killed: bool
    code: int  # where it was not killed
    error: str  # what it printed, its traceback among it
    last: str  # the call at which it was killed


class _Counter:
    """Counts in memory that forked processes share; in each it is one object, as hooks can't be taken back."""

    def __init__(self, root: Path, target: int | None, log: Path) -> None:
        self.root, self.target, self.log = str(root.resolve()), target, log
        self.shared = mmap.mmap(-1, 4096)  # the count, and who counts
        self.sizes: dict[str, int] = {}  # of files when they were opened to be written
        self.pid = 0
        self.is_busy = False

    def numbers(self) -> tuple[int, ...]:
        return struct.unpack(f"{1 + _MOST_PIDS}i", self.shared[: 4 * (1 + _MOST_PIDS)])

    def _join(self) -> None:
        self.pid = os.getpid()
        place = self.numbers()[1:].index(0)
        self.shared[4 * (1 + place) : 4 * (2 + place)] = struct.pack("i", self.pid)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_busy or (event != "open" and event not in _PATHS and event != "fsync"):
            return
        self.is_busy = True
        try:
            path = _path(event, arguments)
            if path is not None and (path == self.root or path.startswith(self.root + os.sep)):
                self._count(event, path)
        finally:
            self.is_busy = False

    def _count(self, event: str, path: str) -> None:
        if _changes_nothing(event, path):
            return
        if self.pid != os.getpid():
            self._join()
        number = self.numbers()[0] + 1  # two that come at one moment count once: the commands here take turns
        self.shared[:4] = struct.pack("i", number)
        if event == "open":
            self.sizes[path] = os.path.getsize(path) if os.path.isfile(path) else 0
        if number == self.target:
            with self.log.open("a") as file:
                file.write(f"\nat {event} {path}\n")
            if event == "fsync":  # what was written is not on the disk yet
                os.truncate(path, (self.sizes.get(path, 0) + os.path.getsize(path)) // 2)
            for pid in self.numbers()[1:]:
                if pid not in (0, self.pid):
                    os.kill(pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)


def _changes_nothing(event: str, path: str) -> bool:
    """A call that fails, as what it removes is not there; or that syncs a folder, which only a power cut shows."""
    if event == "fsync":
        return os.path.isdir(path)
    is_there = os.path.lexists(path)
    return (event == "os.mkdir" and is_there) or (event in ("os.remove", "os.rmdir") and not is_there)


def _path(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What a call changes; None for one that changes nothing."""
    if event == "fsync":
        return os.readlink(f"/proc/self/fd/{arguments[0]}")
    place: int
    base: int | None
    if event == "open":
        place, base = 0, None
        if isinstance(arguments[0], int) or not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
            return None
    else:
        place, base = _PATHS[event]
    path = os.fsdecode(arguments[place])
    if base is not None and isinstance(arguments[base], int) and arguments[base] >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{arguments[base]}"), path)
    return os.path.abspath(path)


def run_forked(work: Callable[[], object], root: Path, target: int | None = None) -> Ended:
    """Do the work in a forked process, that is killed before its `target`-th call that changes a file below `root`.

    A file that would be synced by that call is cut in the middle of what was written to it.
    """
    log = root.with_name(f"{root.name}.log")
    log.unlink(missing_ok=True)
    counter = _Counter(root, target, log)
    child = os.fork()
    if not child:
        _in_child(work, counter, log)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    text = log.read_text(errors="replace") if log.exists() else ""
    last = re.findall(r"^at (.*)$", text, re.MULTILINE)
    return Ended(
        counter.numbers()[0], killed, -1 if killed else os.waitstatus_to_exitcode(status), text, *last[-1:] or [""]
    )


def _in_child(work: Callable[[], object], counter: _Counter, log: Path) -> None:
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in (1, 2):
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.fsync = lambda handle: counter.hear("fsync", (handle,))  # a kill loses nothing that was not synced
        sys.addaudithook(counter.hear)
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def listing(folder: Path) -> list[str]:
    """The files and folders below, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def renewed(source: Path | None, target: Path) -> Path:
    """A copy of the folder in place of what was there, or nothing."""
    shutil.rmtree(target, ignore_errors=True)
    return target if source is None else shutil.copytree(source, target, symlinks=True)
