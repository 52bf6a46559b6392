"""Whose is a run folder: one process at a time, and nobody else's files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ccl.errors import UserError
from ccl.folder import SETTINGS, read_status

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder if need be and hold it; the lock of a dead process is free at once."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} is a file; name a folder")
        _refuse_strangers(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0.2)
    except Timeout:
        raise UserError(f"--out {folder} is in use by {_holder(folder)}; wait for it or name another folder") from None
    except OSError as error:
        raise UserError(f"--out {folder} can't be used: {error.strerror}") from None
    try:
        yield
    finally:
        if os.listdir(folder) == [LOCK]:  # refused before it began: leave no trace
            (folder / LOCK).unlink()
            folder.rmdir()
        lock.release()


def _refuse_strangers(folder: Path) -> None:
    """A folder with anything in it must be a run folder; what a killed first moment leaves does not count."""
    if not folder.exists() or (folder / SETTINGS).exists():
        return
    if any(name != LOCK and not name.endswith(".part") for name in os.listdir(folder)):
        raise UserError(f"--out {folder} is no run folder and not empty: it has no {SETTINGS}; name another folder")


def _holder(folder: Path) -> str:
    status = read_status(folder)
    return f"process {status.get('pid', '?')} on {status.get('host', 'this machine')}"
