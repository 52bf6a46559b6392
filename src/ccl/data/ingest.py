"""The one pass over images: each file is opened once, for its digest, its check, its size and its pixels.

`ingest` yields chunks in order; `gather` and `collected` keep all of them. With a `side` an image is decoded once, to
its centre square; without one it is decoded at an eighth of its size, to find files that are broken.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ccl.data.dataset import MAX_BAD, BadImage, Progress
from ccl.data.decoding import BadImageError, decoded, square_picture
from ccl.data.finding_images import Found, Images, find_images
from ccl.data.image_sources import ArraySource, EncodedSource, ImageSource, Spool, SquaredSource
from ccl.data.object_store import is_remote
from ccl.data.pixels import content_digest, square_arrays
from ccl.errors import UserError

CHUNK = 512  # images of a chunk; the last may have fewer
_LOT = 128  # images read at one time, and
_HELD_BYTES = 1 << 27  # of files, after which a chunk is not filled further
_MAX_THREADS = 16

IsKnown = Callable[[bytes], bool]  # of a digest


class TooManyBadError(UserError):
    """More files that are not usable images than may be left out; `bad` has all of them."""

    def __init__(self, bad: Sequence[BadImage], total: int, allowed: float) -> None:
        first = " ".join(str(bad[0]).split())  # a path may hold line breaks
        super().__init__(
            f"{len(bad)} of {total} images can't be decoded, the first is {first}; "
            f"delete or replace such files: more than {allowed:g} % are too many to leave out"
        )
        self.bad, self.share = tuple(bad), 100 * len(bad) / total  # in percent


class Opened(NamedTuple):
    """What opening an image once gave."""

    position: int  # in the source that is read
    digest: bytes  # 16 bytes: of a file's bytes, or of an array's shape and pixels; b"" if not asked
    num_bytes: int  # of its file; 0 for an array


@dataclass(frozen=True)
class Chunk:
    """Some images of a pass, in order, all of them sound and none of them known; there may be none."""

    source: ImageSource  # their squares, or without a side their files in memory
    images: Sequence[Opened]
    files: Sequence[bytes] = ()  # as they came; b"" for one that is longer than a PNG of its square; () of arrays
    bad: Sequence[BadImage] = ()  # met since the chunk before

    @property
    def positions(self) -> list[int]:
        """In the source that is read."""
        return [image.position for image in self.images]


@dataclass(frozen=True)
class Gathered:
    """All images of a pass that are sound and not known, in a fixed order."""

    source: ImageSource
    found: Found  # the images that were read
    positions: Tensor  # (N,) among those
    digests: tuple[bytes, ...]
    file_sizes: Tensor  # (N,) in bytes; 0 for an array
    skipped: tuple[BadImage, ...]  # files that are called like images and are not usable, by their names as above
    num_known: int = 0  # left out because they are known
    num_repeated: int = 0  # left out because they came before

    @property
    def names(self) -> tuple[str, ...]:
        """What people call the images."""
        return tuple(map(self.found.name, self.positions.tolist()))

    def distinct(self, first_id: int = 0) -> Self:
        """The first image of each content, with ids from `first_id` on."""
        kept: dict[bytes, int] = {}
        for position, digest in enumerate(self.digests):
            kept.setdefault(digest, position)
        positions = torch.tensor(list(kept.values()), dtype=torch.int64)
        source = self.source if len(kept) == len(self.digests) else self.source.subset(positions)
        return replace(
            self,
            source=source.with_ids(first_id + torch.arange(len(kept))),
            digests=tuple(kept),
            file_sizes=self.file_sizes[positions],
            positions=self.positions[positions],
            num_repeated=len(self.digests) - len(kept),
        )


def gather(
    images: Images,
    scratch: Path,
    progress: Progress | None = None,
    side: int | None = None,
    is_known: IsKnown = lambda digest: False,
    max_bad: float = MAX_BAD,
) -> Gathered:
    """Images of any kind that `find_images` takes, looked into; archives are unpacked into the folder `scratch`.

    `progress` is called with bytes of archives, then with images. More than `max_bad` percent of files that can't be
    decoded are refused.

    >>> Image.new("RGB", (32, 24)).save("photo.png")
    >>> ccl.gather(["photo.png"], scratch=Path("scratch")).names
    ('photo.png',)
    """
    return collected(find_images(images, scratch, progress), side, is_known, progress=progress, max_bad=max_bad)


def collected(
    found: Found,
    side: int | None = None,
    is_known: IsKnown | None = None,
    *,
    first_id: int = 0,
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
    spool: Path | None = None,
) -> Gathered:
    """All images of a pass with ids from `first_id` on: squares in one tensor, or without a side as they came.

    With a folder `spool`, squares keep their files there where these are short, for the rehearsal memory.
    """
    source, total = found.source, len(found.source)
    is_squared = side is not None and source.image_size != (side, side)
    squares: list[Tensor] = []
    files = Spool(spool) if spool is not None and is_squared and source.image_size is None else None
    images: list[Opened] = []
    bad: list[BadImage] = []
    for chunk in ingest(found, side, is_known, progress=progress, max_bad=max_bad):
        if isinstance(chunk.source, ArraySource) and is_squared:
            squares.append(chunk.source.images)
        if files is not None:
            files.add(chunk.files)
        images += chunk.images
        bad += chunk.bad
    positions = torch.tensor([image.position for image in images], dtype=torch.int64)
    ids = torch.arange(len(images))
    if is_squared:
        whole, end = torch.empty(len(ids), 3, side or 0, side or 0, dtype=torch.uint8), len(ids)
        while squares:  # emptied on the way: `cat` would have all of them in memory twice
            some = squares.pop()
            whole[end - len(some) : end] = some
            end -= len(some)
        source = ArraySource(whole) if files is None else SquaredSource(whole, files)
    elif len(ids) < total:
        source = source.subset(positions)
    return Gathered(
        source=source.with_ids(first_id + ids),
        found=found,
        digests=tuple(image.digest for image in images),
        file_sizes=torch.tensor([image.num_bytes for image in images], dtype=torch.int64),
        positions=positions,
        skipped=tuple(bad),
        num_known=total - len(images) - len(bad),
    )


def squared(source: ImageSource, side: int, progress: Progress | None = None) -> ImageSource:
    """The centre squares of images that are all sound, with their ids; raises BadImageError where one is not."""
    if source.image_size == (side, side):
        return source
    found = collected(Found(source), side, progress=progress)
    for bad in found.skipped:
        raise BadImageError(bad.reason, Path(bad.path))
    return found.source.with_ids(source.ids)


def median_side(found: Found, progress: Progress | None = None) -> int:
    """The shorter side of a typical image in pixels, by the headers alone; 0 where none can be read."""
    source = found.source
    if source.image_size is not None:
        return min(source.image_size)

    def shorter_side(position: int) -> int:
        try:
            return source.shorter_side(position)
        except BadImageError:
            return 0

    sides = []
    with _threads() as pool:
        for done, side in enumerate(pool.map(shorter_side, range(len(source))), start=1):
            sides += [side] if side else []
            if progress is not None:
                progress(done, len(source))
    return sorted(sides)[len(sides) // 2] if sides else 0


def ingest(
    found: Found,
    side: int | None = None,
    is_known: IsKnown | None = None,
    *,
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
    keeps_files: bool = False,
) -> Iterator[Chunk]:
    """The images in chunks of up to `CHUNK`; more than `max_bad` percent that are not usable are refused.

    Digests are taken only where `is_known` asks for them; images whose digests it knows are not decoded. The refusal
    comes at the end, and names all; nothing is yielded any more once it is due. `keeps_files`: also long ones, beside
    their squares.
    """
    source, total = found.source, len(found.source)
    report = progress or (lambda done, total: None)
    if source.image_size is not None:
        yield from _of_arrays(found, side, is_known, report)
        return
    look = partial(_open, found, side, is_known, keeps_files)
    all_bad: list[BadImage] = []
    images, squares, files, bad = list[Opened](), list[Tensor](), list[bytes](), list[BadImage]()  # of the next chunk
    num_bytes = 0  # of its files
    with _threads() as pool:
        for start in range(0, total, _LOT):
            lot = range(start, min(start + _LOT, total))
            for position, seen in zip(lot, pool.map(look, lot), strict=True):
                report(position + 1, total)
                if isinstance(seen, BadImage):
                    bad.append(seen)
                elif seen is not None:
                    images.append(seen[0])
                    squares.append(seen[1])
                    files.append(seen[2])
                    num_bytes += len(seen[2])
                is_full = len(images) == CHUNK or num_bytes > _HELD_BYTES
                if not is_full and position + 1 < total:
                    continue
                all_bad += bad
                if len(all_bad) <= max_bad / 100 * total:
                    is_squared = side is not None and len(squares) > 0
                    here = ArraySource(torch.stack(squares)) if is_squared else EncodedSource(files)
                    yield Chunk(here, images, files, bad)
                images, squares, files, bad, num_bytes = [], [], [], [], 0
    if len(all_bad) > max_bad / 100 * total:
        raise TooManyBadError(all_bad, total, max_bad)


def _threads() -> ThreadPoolExecutor:
    """Threads help, as Pillow drops the interpreter lock while it decodes."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS))


def _open(
    found: Found, side: int | None, is_known: IsKnown | None, keeps_file: bool, position: int
) -> tuple[Opened, Tensor, bytes] | BadImage | None:
    """An image opened once, with its square (3, side, side) and its file; None for one that is known."""
    try:
        content = found.source.encoded(position)
        digest = b""
        if is_known is not None:
            digest = found.digests.get(position) or content_digest(content)
            if is_known(digest):
                return None
        # An eighth of the size is twice as fast and finds the same: all of a JPEG is read, less is put out.
        eighth = (lambda width, height: 8) if side is None else None
        with decoded(io.BytesIO(content), eighth) as picture:
            square = None if side is None else torch.from_numpy(square_picture(picture, side)).permute(2, 0, 1)
    except BadImageError as error:
        name = found.name(position)
        # "./a.png" is "a.png"; the address of a record in a store stays as it is.
        return BadImage(name if is_remote(name) else str(Path(name)), error.reason)
    opened = Opened(position, digest, len(content))
    if side is None or square is None:
        return opened, torch.empty(0), content
    longest = 1024 + side * (3 * side + 1) * 101 // 100  # of any PNG of the square
    return opened, square, content if keeps_file or len(content) <= longest else b""


def _of_arrays(found: Found, side: int | None, is_known: IsKnown | None, report: Progress) -> Iterator[Chunk]:
    """Images of one size that lie in memory; all of them are sound."""
    source, total = found.source, len(found.source)
    for start in range(0, total, CHUNK):
        lot = range(start, min(start + CHUNK, total))
        digests = {at: found.digests.get(at, b"") for at in lot}
        kept = [at for at in lot if is_known is None or not is_known(digests[at])]
        images = source.subset(torch.tensor(kept, dtype=torch.int64))
        if side is not None and source.image_size != (side, side):
            images = ArraySource(square_arrays(images, side), images.ids)
        opened = [Opened(at, digests[at], 0) for at in kept]
        yield Chunk(images, opened)
        report(lot[-1] + 1, total)
