"""Files that can't be written, refused before the work rather than after it."""

import os
import tempfile
from collections.abc import Collection
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
