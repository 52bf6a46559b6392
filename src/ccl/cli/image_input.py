"""What the commands that use an encoder share: gathering images, reading them, reporting what was left out."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from torch import Tensor

from ccl.continual_encoder import FrozenEncoder
from ccl.continual_encoder.features import Manifest, Written, missing_parts
from ccl.continual_encoder.images import bad_images_beside, listing_bad_images
from ccl.data import BadImage, Gathered, ImageSource, gather, write_bad_images
from ccl.data.found_images import find_images
from ccl.data.ingest import MAX_BAD
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
def gathered(inputs: Sequence[str], console: Console, out: Path, max_bad: float = MAX_BAD) -> Iterator[Gathered]:
    """The images behind the inputs, for as long as the context lasts; a UserError where there are none.

    More than `max_bad` percent of unusable files are refused, and listed next to `out`.
    """
    with tempfile.TemporaryDirectory(prefix="ccl-") as scratch:
        with bar(console, "looking through the images") as progress, listing_bad_images(bad_images_beside(out)):
            found = gather(inputs, Path(scratch), progress, max_bad=max_bad)
        for line in found.notes:
            note(console, line)
        if not len(found.source):
            raise UserError(f"no usable images in {', '.join(inputs)}")
        yield found


@contextmanager
def named(inputs: Sequence[str], console: Console) -> Iterator[tuple[ImageSource, Sequence[str]]]:
    """The images that the inputs name, not yet looked into, and their names, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="ccl-") as scratch:
        with bar(console, "looking for images") as progress:
            source, names, notes = find_images(inputs, Path(scratch), progress)
        for line in notes:
            note(console, line)
        yield source, names


def read(frozen: FrozenEncoder, source: ImageSource, console: Console) -> Tensor:
    """Their features (N, F)."""
    with bar(console, "reading the images") as progress:
        return frozen.features(source, progress)


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
