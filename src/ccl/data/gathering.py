"""Unlabelled images from wherever they are: sound ones only, in a fixed order, each with a digest of its content."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from ccl.data.dataset import BadImage, Progress, with_ids
from ccl.data.decode_cache import Verdicts, cache_folder
from ccl.data.digests import file_digest
from ccl.data.finding import Findings
from ccl.data.in_memory import Pile, each
from ccl.data.sources import FileSource, ImageSource
from ccl.data.validation import CHUNK, judged, sorted_out, threads
from ccl.errors import UserError


@dataclass(frozen=True)
class Unseen:
    """Images that are not known yet, each once, with ids 0 … N-1."""

    source: ImageSource
    names: tuple[str, ...]
    digests: tuple[bytes, ...]
    num_known: int  # left out because they are known
    num_repeated: int  # left out because they came before


@dataclass(frozen=True)
class Gathered:
    """Images that can all be decoded, with ids 0 … N-1."""

    source: ImageSource
    names: tuple[str, ...]  # for people: a path, "archive.zip::inner/path.png" or "image 17"
    digests: tuple[bytes, ...]  # 16 bytes each: of a file's bytes, or of an array's shape and pixels
    skipped: tuple[BadImage, ...]  # files that are called like images and are none, by their names as above
    notes: tuple[str, ...]  # what the user should be told, one line each

    def without(self, is_known: Callable[[bytes], bool]) -> Unseen:
        """The images whose digests are not known, the first of each content."""
        kept: dict[bytes, int] = {}
        num_known = 0
        for position, digest in enumerate(self.digests):
            if is_known(digest):
                num_known += 1
            else:
                kept.setdefault(digest, position)
        positions = torch.tensor(list(kept.values()), dtype=torch.int64)
        return Unseen(
            source=with_ids(self.source.subset(positions), torch.arange(len(kept))),
            names=tuple(self.names[position] for position in kept.values()),
            digests=tuple(kept),
            num_known=num_known,
            num_repeated=len(self.digests) - num_known - len(kept),
        )


def gather(inputs: Sequence[str | Path], workshop: Path, progress: Progress | None = None) -> Gathered:
    """The images of folders (any layout), globs, archives, lists of paths and single files, input by input.

    Within an input they are sorted, folder by folder; a list keeps its order. Archives are unpacked into the workshop,
    a folder of the caller's that must last as long as the images are read. `progress` hears of bytes of archives,
    then of images. More than 5 % of files that can't be decoded are refused.
    """
    findings = Findings(workshop, progress)
    for item in [inputs] if isinstance(inputs, str | Path) else inputs:
        findings.add(os.fspath(item))
    if not findings.paths:
        raise UserError("no images are given; name folders, images, archives or lists of paths")
    source = FileSource(findings.paths)
    return _sound(source, findings.names, lambda at: file_digest(source.names[at]), findings.notes(), progress)


def gather_arrays(images: Iterable[object], progress: Progress | None = None) -> Gathered:
    """Images held in Python: arrays, tensors, PIL pictures, bytes of encoded images, paths of files, also mixed.

    An array or tensor of four dimensions is a batch. Arrays are (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4
    channels; where both are possible, an array is taken as (H, W, C) and a tensor as (C, H, W). Values are uint8, or
    floats in [0, 1]. The images stay arrays if all of them have one size, and files if all of them are paths; else
    they are kept encoded.
    """
    pile = Pile()
    for number, image in enumerate(each(images)):
        try:
            pile.add(image)
        except UserError as error:
            raise UserError(f"image {number}: {error}") from error
    if not pile.names:
        raise UserError("no images are given")
    source = pile.source()
    if source.image_size is not None:
        digests = tuple(map(pile.digest, range(len(source))))
        return Gathered(source, tuple(pile.names), digests, (), pile.notes())
    return _sound(source, pile.names, pile.digest, pile.notes(), progress)


def _sound(
    source: ImageSource,
    names: Sequence[str],
    digest: Callable[[int], bytes],
    notes: Sequence[str],
    progress: Progress | None,
) -> Gathered:
    """The images that can be decoded, by the rule and with the memory of `screening`."""
    digests: list[bytes] = []
    with Verdicts(cache_folder()) as verdicts, threads() as pool:
        looks = _digested(judged(source, verdicts), names, digest, pool)
        kept, bad = sorted_out(looks, len(source), lambda number, seen: digests.append(seen), progress)
    return Gathered(
        source=with_ids(source.subset(kept), torch.arange(len(kept))),
        names=tuple(names[position] for position in kept.tolist()),
        digests=tuple(digests),
        skipped=tuple(bad),
        notes=(*notes, verdicts.trouble) if verdicts.trouble else tuple(notes),
    )


def _digested(
    verdicts: Iterator[BadImage | None], names: Sequence[str], digest: Callable[[int], bytes], pool: ThreadPoolExecutor
) -> Iterator[bytes | BadImage]:
    """The digest of each sound image, in order; a file is read for it right after it was decoded, if it was."""

    def one(position: int, bad: BadImage | None) -> bytes | BadImage:
        if bad is not None:
            return BadImage(Path(names[position]), bad.reason)
        try:
            return digest(position)
        except OSError as error:  # it was sound when it was last decoded
            return BadImage(Path(names[position]), error.strerror or str(error))

    for start in range(0, len(names), CHUNK):
        chunk = list(itertools.islice(verdicts, CHUNK))
        yield from pool.map(one, range(start, start + len(chunk)), chunk)
