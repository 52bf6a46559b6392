"""Atomic writes of files and folders: written beside, synced to disk, then renamed. Does not import torch.

A reader, also after a kill or a power cut, finds the old content or the new, never a part. What an error leaves is
removed; what a kill leaves has a hidden name with `.part` in it and is never read.
"""

import csv
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from ccl.errors import UserError


def write_file(path: Path, content: str | bytes) -> None:
    """Write or replace a file; text is UTF-8, with a question mark for what UTF-8 can't hold."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode("utf-8", errors="replace") if isinstance(content, str) else content)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write or replace a table, UTF-8 whatever bytes the file names in it hold."""
    with (
        replacing(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        # Text is quoted, because Python before 3.13 leaves a lone carriage return bare.
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows([columns, *rows])


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; at the end it takes the place of `path`. Missing folders are made."""
    make_folder(path.parent)
    # Unlike any other, as two may write the same file, also on two machines; some writers look at the suffix. Cut, as
    # it may not be too long where the name itself is not.
    unfinished = path.with_name(f".{path.stem[:40]}.{uuid4().hex}.part{path.suffix}")
    try:
        yield unfinished
        move_into_place(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_folder(path: Path, contents: Mapping[str, bytes], unfinished: Path) -> None:
    """Write a new folder of files; `unfinished` is the path beside it that it has until it is complete."""
    remove(unfinished)  # of a killed process with the same id, as in containers
    try:
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
