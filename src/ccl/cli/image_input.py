"""What the commands that use an encoder share: gathering images, reading them, reporting what was left out."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ccl.continual_encoder.features import Manifest, Written, missing_parts
from ccl.continual_encoder.frozen import Features, FrozenEncoder
from ccl.continual_encoder.images import bad_images_beside, listing_bad_images
from ccl.data import MAX_BAD, BadImage, Found, find_images, write_bad_images
from ccl.errors import UserError, counted
from ccl.runs.display import make_progress, note


@contextmanager
def bar(console: Console, text: str) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that shows progress: a bar on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    with make_progress(console) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


@contextmanager
def found(inputs: Sequence[str], console: Console) -> Iterator[Found]:
    """The images that the inputs name, not yet looked into, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="ccl-") as scratch:
        with bar(console, "looking for images") as progress:
            images = find_images(inputs, Path(scratch), progress)
        for line in images.notes:
            note(console, line)
        yield images


def read(frozen: FrozenEncoder, images: Found, console: Console, out: Path, max_bad: float = MAX_BAD) -> Features:
    """Features of the images; more than `max_bad` percent of unusable files are refused, and listed next to `out`."""
    with bar(console, "reading the images") as progress, listing_bad_images(bad_images_beside(out)):
        features = frozen.read(images, progress, max_bad)
    if not len(features.rows):
        raise UserError("none of the files is a usable image")
    return features


def report_left_out(skipped: Sequence[BadImage], console: Console, out: Path | None = None) -> None:
    """A line about the images that were left out, and, next to `out`, a table of them."""
    table = None if out is None else bad_images_beside(out)
    if table is not None:
        table.unlink(missing_ok=True)  # of an earlier time
    if not skipped:
        return
    where = f"; all of them: {table}" if table is not None else ""
    first = " ".join(str(skipped[0]).split())  # a path may hold line breaks
    note(console, f"{len(skipped)} left out as not usable, the first is {first}{where}")
    if table is not None:
        write_bad_images(table, skipped)


def report_parts(out: Path, manifest: Manifest, written: Sequence[Written], console: Console) -> None:
    """A line about the parts that were written, and one about all."""
    num_rows, num_bad = sum(part.num_rows for part in written), sum(part.num_bad for part in written)
    left_out = f", {num_bad:,} left out as not usable (part-….bad_images.csv)" if num_bad else ""
    here = f"{counted(len(written), 'part')} with {counted(num_rows, 'image')}"
    note(console, f"{here} written by version {manifest.about['version']}{left_out}")
    num_done = manifest.num_parts - len(missing_parts(out, manifest))
    note(console, f"{num_done} of {manifest.num_parts} parts are done: {out}")
