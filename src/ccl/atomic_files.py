"""Atomic writes of files and folders: written beside, synced to disk, then renamed. Does not import torch.

A reader, also after a kill or a power cut, finds the old content or the new, never a part. What an error leaves is
removed; what a kill leaves has a hidden name with `.part` in it, is never read, and goes at the next write beside it.
"""

import csv
import errno
import hashlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from ccl.errors import UserError

_UNFINISHED = re.compile(r"\..*\.([0-9a-f]{8})-([0-9]{1,10})-[0-9a-f]{8}\.part(?:\..*)?", re.DOTALL)
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # the disk, the file, the user's part of the disk


class DiskFullError(UserError, OSError):
    """The disk is too full for a file or a folder; the message has the bytes needed and those free."""

    def __init__(self, path: Path, needed: int, cause: str) -> None:
        self.needed, self.free = needed, shutil.disk_usage(next(one for one in path.parents if one.exists())).free
        room = f"at least {needed} bytes needed, {self.free} free"
        super().__init__(f"{path}: no room ({cause}): {room}; what was there is untouched")


@contextmanager
def naming_a_full_disk(path: Path, needed: int) -> Iterator[None]:
    """Raise DiskFullError, with what has no room, where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFullError(path, needed, os.strerror(error.errno)) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write or replace a file; text is UTF-8, with a question mark for what UTF-8 can't hold."""
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    with replacing(path) as unfinished, naming_a_full_disk(path, len(data)):
        unfinished.write_bytes(data)


def append(path: Path, content: bytes) -> None:
    """Append to a file; after an error it is as it was."""
    with naming_a_full_disk(path, len(content)), path.open("ab", buffering=0) as file:
        before, left = file.tell(), memoryview(content)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(before)
            raise


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write or replace a table, UTF-8 whatever bytes the file names in it hold."""
    with (
        replacing(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        # Text is quoted, because Python before 3.13 leaves a lone carriage return bare.
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows(
            [csv_text(cell) if isinstance(cell, str) else cell for cell in row] for row in (columns, *rows)
        )


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")  # apostrophes too, so that one less always gives the text back


def csv_text(text: str) -> str:
    """A text as a cell: what a spreadsheet would take for a formula gets an apostrophe in front."""
    return f"'{text}" if _FORMULA.match(text) else text


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; at the end it takes the place of `path`. Missing folders are made."""
    unfinished = beside(path)
    try:
        make_folder(path.parent)
        _remove_leftovers(path.parent)
        yield unfinished
        move_into_place(unfinished, path)
    except OSError as error:
        with naming_a_full_disk(path, unfinished.stat().st_size if unfinished.exists() else 0):
            raise error
    finally:
        unfinished.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """A hidden name for what is to become `path`, unlike any other: two may write the same file, also on two machines.

    Some writers look at the suffix. It is not too long where the name itself is not, and says who writes.
    """
    return path.with_name(f".{path.stem[:40]}.{_here()}-{os.getpid()}-{uuid4().hex[:8]}.part{path.suffix}")


@cache
def _here() -> str:
    """Where the number of a process is its own: this machine since it was started, and this container."""
    found = [socket.gethostname()]
    with suppress(OSError):
        found += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("|".join(found).encode(errors="replace")).hexdigest()[:8]


def _remove_leftovers(folder: Path) -> None:
    """Delete what killed processes were writing into a folder; of other machines what is older than a day."""
    for name in os.listdir(folder):
        if found := _UNFINISHED.fullmatch(name):
            with suppress(OSError):  # another process removes it too
                where, process = found.groups()
                old = time.time() - (folder / name).lstat().st_mtime > 86_400
                if old or (where == _here() and not _is_alive(int(process))):
                    remove(folder / name)


def _is_alive(process: int) -> bool:
    if os.name == "posix":  # elsewhere the signal 0 ends it
        try:
            os.kill(process, 0)
        except OSError as error:
            return error.errno != errno.ESRCH
    return True


def write_folder(path: Path, contents: Mapping[str, bytes], unfinished: Path) -> None:
    """Write a new folder of files; `unfinished` is the path beside it that it has until it is complete."""
    remove(unfinished)  # of a killed process with the same id, as in containers
    _remove_leftovers(path.parent)
    try:
        with naming_a_full_disk(path, sum(map(len, contents.values()))):
            unfinished.mkdir()
            for name, content in contents.items():
                (unfinished / name).write_bytes(content)
                sync(unfinished / name)
            move_into_place(unfinished, path)
    except BaseException:
        remove(unfinished)
        raise


def move_into_place(finished: Path, path: Path) -> None:
    """Rename a file, or a folder whose files are synced: on the disk before it has its name, and so is the name."""
    sync(finished)
    os.replace(finished, path)
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync their names to disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder with everything in it; it may be absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Delete a folder, of which a kill leaves nothing under its name; it may be absent."""
    with suppress(FileNotFoundError):
        remove(path.rename(beside(path)))


def check_target(path: Path, suffixes: Collection[str], what: str) -> None:
    """Refuse a file that could not be written: another suffix than the known ones, a folder, no place for it."""
    if path.suffix not in suffixes:
        raise UserError(f"{path}: {what} is written as {', '.join(suffixes)}; name a file that ends so")
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; name a file")
    path = path.absolute()
    folder = next(folder for folder in path.parents if os.path.exists(folder))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        # A name may be too long, also with what is written beside; each below a folder that is there, or none is tried.
        for name in (*path.parent.relative_to(folder).parts, f"{path.name}.bad_images.csv"):
            with suppress(FileNotFoundError):
                (folder / name).lstat()
    except OSError as error:
        raise UserError(f"can't write {str(path)[:200]}: {str(folder)[:200]}: {error.strerror}") from error
