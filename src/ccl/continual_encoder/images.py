"""Images for a use: found, read by an encoder, and what of them is not usable reported and listed."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from ccl.continual_encoder.frozen_encoder import Features, FrozenEncoder
from ccl.data import MAX_BAD, BadImage, Found, Images, TooManyBadError, find_images, write_bad_images
from ccl.errors import UserError, counted, masked
from ccl.training import Observer

SILENT = Observer()


@contextmanager
def found_images(images: Images, display: Observer = SILENT) -> Iterator[Found]:
    """The images, not yet looked into, for as long as the context lasts: archives are unpacked."""
    with TemporaryDirectory(prefix="ccl-") as scratch:
        found = find_images(images, Path(scratch), display.loading)
        display.run_ends()
        for line in found.notes:
            display.note(line)
        yield found


def read_images(
    encoder: FrozenEncoder,
    found: Found,
    out: Path | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = SILENT,
    look: Callable[[Tensor, Sequence[bytes]], None] | None = None,
) -> Features:
    """Features of the usable images; what is left out is reported, and listed beside `out`."""
    try:
        with nullcontext() if out is None else listing_bad_images(out):
            read = encoder.read(found, display.loading, max_bad, look)
    finally:
        display.run_ends()
    if not len(read.rows):
        raise UserError("none of the files is a usable image")
    tell_left_out(read.skipped, out, display)
    return read


def tell_left_out(skipped: Sequence[BadImage], out: Path | None, display: Observer) -> None:
    """Report the files that are not usable, and list them beside `out`."""
    where = ""
    if out is not None:
        table = bad_images_beside(out)
        table.unlink(missing_ok=True)  # of an earlier time
        if skipped:
            write_bad_images(table, skipped)
            where = f"; all of them: {table}"
    if skipped:
        first = " ".join(str(skipped[0]).split())  # a path may hold line breaks
        display.note(f"{len(skipped)} left out as not usable, the first is {first}{where}")


@contextmanager
def listing_bad_images(target: Path) -> Iterator[None]:
    """Context manager: where too many files are not usable, lists all of them before it refuses."""
    try:
        yield
    except TooManyBadError as error:
        write_bad_images(table := bad_images_beside(target), error.bad)
        allowed = math.ceil(error.share)
        raise UserError(f"{error}; all are listed in {table}; --max-bad {allowed} leaves them out") from error


def bad_images_beside(target: Path) -> Path:
    """The table of files that are not usable images, next to the output."""
    target = target.absolute()
    return target.with_name(f"{target.name}.bad_images.csv")


def name_of(images: Images) -> str:
    """A default name: the last part of the first path, or the kind of input."""
    if isinstance(images, str | Path):
        text = masked(str(images))  # an address with credentials
        return Path(text).resolve().name or text
    if not isinstance(images, Sequence) or not len(images):
        return type(images).__name__
    if not isinstance(images[0], str | Path):
        return counted(len(images), "image")
    return name_of(images[0]) + (f" and {len(images) - 1} more" if len(images) > 1 else "")
