"""Files that can't be written, refused before the work rather than after it."""

import math
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ccl.data import TooManyBadError, write_bad_images
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


def bad_images_beside(target: Path) -> Path:
    """Where files that are not usable images are listed, next to what was to be written."""
    target = target.absolute()
    return target.with_name(f"{target.name}.bad_images.csv")


@contextmanager
def listing_bad_images(table: Path) -> Iterator[None]:
    """Where too many files are not usable, all of them are listed in the table before that is refused."""
    try:
        yield
    except TooManyBadError as error:
        write_bad_images(table, error.bad)
        allowed = math.ceil(error.share)
        raise UserError(f"{error}; all are listed in {table}; --max-bad {allowed} leaves them out") from error
