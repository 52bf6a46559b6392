"""Every file of a dataset decoded once before a run, so that none of them can stop it later.

What was found is remembered (`verdicts`), so that a file is decoded for this once in its life, not once a run. Nothing
is put off until training meets a file: ids and batches depend on which files there are.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from ccl.atomic_files import replacing
from ccl.data.dataset import BadImage, Dataset, Progress, numbered
from ccl.data.decode_cache import Verdicts, cache_folder, keys_of
from ccl.data.decoding import BadImageError, Reduction, in_full
from ccl.data.sources import FileSource, ImageSource
from ccl.errors import UserError

MAX_BAD_SHARE = 0.05
_MAX_THREADS = 16
CHUNK = 2048

Seen = TypeVar("Seen")
# The images that remain of a part, the positions they had in it (n,), and those that are left out.
Screened = tuple[ImageSource, Tensor, list[BadImage]]


def screened(dataset: Dataset, progress: Progress | None = None) -> Dataset:
    """The dataset without the files that can't be decoded; arrays pass as they are."""
    with Verdicts(cache_folder()) as verdicts:

        def sound_part(source: ImageSource) -> Screened:
            if source.image_size is not None:
                return source, torch.arange(len(source)), []
            # Nothing is kept of a picture: to be decoded is all that is asked of it.
            kept, bad = sorted_out(judged(source, verdicts), len(source), lambda number, seen: None, progress)
            return source.subset(kept) if bad else source, kept, bad

        sound = each_part(dataset, sound_part)
    return replace(sound, notes=(*sound.notes, verdicts.trouble)) if verdicts.trouble else sound


def each_part(dataset: Dataset, screen: Callable[[ImageSource], Screened]) -> Dataset:
    """The dataset with both parts screened: labels follow their images, ids count anew, bad images are listed."""
    train, kept, bad = screen(dataset.train)
    train_labels = None if dataset.train_labels is None else dataset.train_labels[kept]
    test, test_labels = dataset.test, dataset.test_labels
    if test is not None:
        test, kept, more_bad = screen(test)
        test_labels = None if test_labels is None else test_labels[kept]
        bad = [*bad, *more_bad]
    sound = replace(
        dataset,
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        skipped=(*dataset.skipped, *bad),
    )
    return numbered(sound)


def look_through(
    source: ImageSource,
    look: Callable[[Image.Image], Seen],
    keep: Callable[[int, Seen], None],
    progress: Progress | None = None,
) -> tuple[Tensor, list[BadImage]]:
    """Decode every picture, and return the positions of the sound ones (n,) and the bad ones; too many are refused.

    `look` is called in threads; `keep` gets what it saw in the order of the source, with numbers 0 … n-1.
    """
    with threads() as pool:
        return sorted_out(_looks(source, look, pool), len(source), keep, progress)


def sorted_out(
    looks: Iterable[Seen | BadImage], total: int, keep: Callable[[int, Seen], None], progress: Progress | None
) -> tuple[Tensor, list[BadImage]]:
    """The positions of the sound ones (n,) among what was seen, and the bad ones; too many are refused.

    `keep` gets what was seen of the sound ones, with numbers 0 … n-1.
    """
    kept: list[int] = []
    bad: list[BadImage] = []
    for position, seen in enumerate(looks):
        if isinstance(seen, BadImage):
            bad.append(seen)
        else:
            keep(len(kept), seen)
            kept.append(position)
        if progress is not None:
            progress(position + 1, total)
    if len(bad) > MAX_BAD_SHARE * total:
        first = " ".join(str(bad[0]).split())  # a path may hold line breaks
        raise UserError(
            f"{len(bad)} of {total} images can't be decoded, the first is {first}; "
            f"delete or replace such files: more than {MAX_BAD_SHARE * 100:g} % are too many to leave out"
        )
    return torch.tensor(kept, dtype=torch.int64), bad


def threads() -> ThreadPoolExecutor:
    """Threads help, as Pillow drops the interpreter lock while it decodes."""
    return ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, _MAX_THREADS))


def _looks(
    source: ImageSource, look: Callable[[Image.Image], Seen], pool: ThreadPoolExecutor, reduction: Reduction = in_full
) -> Iterator[Seen | BadImage]:
    """What there is at each position, in order."""

    def one(position: int) -> Seen | BadImage:
        try:
            return look(source.picture(position, reduction))
        except BadImageError as error:
            return BadImage(error.path or Path(f"image {position}"), error.reason)  # bytes in memory have no path

    for chunk in torch.split(torch.arange(len(source)), CHUNK):  # a bound on what waits in memory
        yield from pool.map(one, chunk.tolist())


def judged(source: ImageSource, remembered: Verdicts) -> Iterator[BadImage | None]:
    """What is wrong at each position, in order; only files of which nothing is remembered are decoded.

    Files come in chunks of CHUNK: who reads a chunk of sound ones again finds them in the system's memory.
    """

    # An eighth of the size is twice as fast and finds the same: all of a JPEG's data is read, less is put out.
    def decoded(part: ImageSource, pool: ThreadPoolExecutor) -> Iterator[BadImage | None]:
        return _looks(part, lambda picture: None, pool, lambda width, height: 8)

    with threads() as pool:
        if not isinstance(source, FileSource):
            yield from decoded(source, pool)
            return
        for chunk in torch.split(torch.arange(len(source)), CHUNK):
            names = [source.names[position] for position in chunk.tolist()]
            keys = keys_of(names)
            known = remembered.known(keys)
            new = [place for place, key in enumerate(keys) if key not in known]
            found = dict(zip(new, decoded(source.subset(chunk[new]), pool), strict=True))
            reasons = {place: "" if bad is None else bad.reason for place, bad in found.items()}
            remembered.keep({key: reasons[place] for place in new if (key := keys[place]) is not None})
            for place, (name, key) in enumerate(zip(names, keys, strict=True)):
                reason = reasons[place] if place in reasons or key is None else known[key]
                yield BadImage(Path(name), reason) if reason else None


def write_bad_images(path: Path, bad: Sequence[BadImage]) -> None:
    """A CSV table of path and reason, UTF-8 whatever bytes the file names hold."""
    with (
        replacing(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        # All is quoted, because Python before 3.13 leaves a lone carriage return bare.
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(["path", "reason"])
        writer.writerows([image.path, image.reason] for image in bad)
