"""Lock and status of a folder that a command writes to: one process at a time, no folder with foreign files."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ccl.errors import UserError
from ccl.runs.file_types import Status, typed
from ccl.sealed_json import unseal

LOCK, STATUS, SETTINGS = ".lock", "status.json", "settings.yaml"
_UNSEALED = Status.model_fields.keys() - {"files"}


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
        status = shown_status(folder / kind.status, folder)
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


def is_held(folder: Path, if_unknown: bool = False) -> bool:
    """Whether a living process, here or on another machine, has the run folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # the lock can't be opened at all: the run itself will report why
        return if_unknown


def _refuse_other_files(folder: Path, kind: Kind, named: str) -> None:
    """A folder with anything in it must be of this kind, except for what a process killed at its start leaves."""
    if not folder.exists() or any((folder / name).exists() for name in kind.markers):
        return
    if any(name != LOCK and not (name.startswith(".") and ".part" in name) for name in os.listdir(folder)):
        raise UserError(f"{named} is not {kind.title} and not empty: it has no {kind.markers[0]}; name another folder")


def read_status(folder: Path) -> dict[str, Any]:
    """The content of status.json, {} where there is none; raises UserError where it can't be relied on."""
    path = folder / STATUS
    try:
        content = path.read_bytes()
        status = json.loads(content)
        # Those of before are not sealed, and a sealed one with a flipped bit in the name of its seal is none of them.
        if not isinstance(status, dict) or not status.keys() <= _UNSEALED:
            status = unseal(content)
        return typed(Status, status)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {advice(folder)}") from None


def shown_status(folder: Path, lock: Path | None = None) -> dict[str, Any]:
    """The status as people are to see it; `lock` is the folder whose lock its process holds, if it is another."""
    try:
        return as_shown(read_status(folder), lock or folder)
    except UserError:
        return {"state": "unknown"}


def as_shown(status: Mapping[str, Any], lock: Path) -> dict[str, Any]:
    """A status; one that says "running" while nobody holds the lock was left by a process that was killed."""
    is_killed = status.get("state") == "running" and not is_held(lock, if_unknown=True)
    return {**status, **({"state": "stopped (killed)"} if is_killed else {})}


def advice(folder: Path) -> str:
    """What to do about a damaged file of a run folder."""
    return f"`ccl verify {folder} --repair` mends what can be mended"
