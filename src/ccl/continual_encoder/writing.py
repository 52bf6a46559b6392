"""Files that appear whole or not at all, and what is refused before the work rather than after it."""

import importlib
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ccl.errors import UserError


def check_target(path: Path, suffixes: Collection[str], what: str) -> None:
    """Refuse a file that could not be written: another suffix than the known ones, a folder, no place for it."""
    if path.suffix not in suffixes:
        raise UserError(f"{path}: {what} is written as {', '.join(suffixes)}; name a file that ends so")
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; name a file")
    folder = next(folder for folder in path.absolute().parents if os.path.exists(folder))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"can't write {path}: {folder}: {error.strerror}") from error


def require(packages: Collection[str], extra: str, what: str) -> None:
    """Refuse what needs packages that are not there."""
    for package in packages:
        try:
            importlib.import_module(package)
        except Exception as error:  # a broken installation raises anything
            raise UserError(f"{what} needs {package}, which can't be imported; pip install 'ccl[{extra}]'") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write; at the end it takes the place of `path`, and after an error nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")  # some writers look at the suffix
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
