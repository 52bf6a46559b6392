"""Images as they are given, and where those that can't be used are listed."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ccl.continual_encoder.frozen import Features, FrozenEncoder
from ccl.data import Images, TooManyBadError, find_images, write_bad_images
from ccl.errors import UserError, counted


def read(encoder: FrozenEncoder, images: Images, scratch: Path, may_skip: bool = False) -> Features:
    """Features of all of them; refuses what has unusable files, since rows would no longer match what was given."""
    found = encoder.read(find_images(images, scratch))
    if found.skipped and not may_skip:
        files = counted(len(found.skipped), "file")
        raise UserError(f"{files} can't be used as an image, the first is {found.skipped[0]}")
    if not len(found.rows):
        raise UserError("none of the files is a usable image")
    return found


def name_of(images: Images) -> str:
    """What people call a drop: the last part of its first path, or the kind of what was given."""
    if isinstance(images, Sequence) and not isinstance(images, str) and len(images):
        first = images[0]
        more = f" and {len(images) - 1} more" if len(images) > 1 and isinstance(first, str | Path) else ""
        return name_of(first) + more if isinstance(first, str | Path) else counted(len(images), "image")
    if isinstance(images, str | Path):
        return Path(images).resolve().name or str(images)
    return type(images).__name__


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
