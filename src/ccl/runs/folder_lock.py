"""Lock and status of a folder that a command writes to: one process at a time, no folder with foreign files."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ccl.errors import UserError

LOCK, STATUS, SETTINGS = ".lock", "status.json", "settings.yaml"


@dataclass(frozen=True)
class Kind:
    """A kind of folder: what it is called, the option that names it, the files that mark it."""

    title: str  # with its article
    option: str
    markers: tuple[str, ...]  # any of them
    status: str = "."  # the folder below it with the status of its holder


RUN = Kind("a run folder", "--out", (SETTINGS,))


@contextmanager
def locked(folder: Path, kind: Kind = RUN) -> Iterator[None]:
    """Context manager: create the folder if missing and lock it. A dead process's lock is free at once."""
    named = f"{kind.option} {folder}"
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{named} is a file; name a folder")
        _refuse_other_files(folder, kind, named)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0.2)
    except Timeout:
        status = read_status(folder / kind.status)
        holder = "another process, which has just begun"  # and has written no status
        if "pid" in status:
            holder = f"process {status['pid']} on {status.get('host', 'this machine')}"
        raise UserError(f"{named} is in use by {holder}; wait for it or name another folder") from None
    except OSError as error:
        raise UserError(f"{named} can't be used: {error.strerror}") from None
    try:
        yield
    finally:
        if os.listdir(folder) == [LOCK]:  # refused before it began: leave no trace
            (folder / LOCK).unlink()
            folder.rmdir()
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a living process, here or on another machine, has the run folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # the lock can't be opened at all: the run itself will report why
        return False


def _refuse_other_files(folder: Path, kind: Kind, named: str) -> None:
    """A folder with anything in it must be of this kind, except for what a process killed at its start leaves."""
    if not folder.exists() or any((folder / name).exists() for name in kind.markers):
        return
    if any(name != LOCK and not (name.startswith(".") and ".part" in name) for name in os.listdir(folder)):
        raise UserError(f"{named} is not {kind.title} and not empty: it has no {kind.markers[0]}; name another folder")


def read_status(folder: Path) -> dict[str, Any]:
    """The content of status.json; {} where there is none that can be read."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
