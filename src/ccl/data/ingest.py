"""Images read once, from wherever they are: a file is opened one time for its digest, its size, its check, its pixels.

`gather` takes folders, globs, archives, shards, lists of paths and files; `gather_arrays` takes what Python holds. Both
return `Gathered`: the sound images in a fixed order, with names, digests and sizes. `ingest` is the pass itself, over
any source; `load_dataset` uses it too. What a pass can be given:

    side       the size to learn in, where it is known: images come out as one uint8 tensor (N, 3, side, side). Else
               they come out as they are, and `squared(source, side)` decodes them once more
    is_known   says which digests are of images that are not wanted again: those are counted, not decoded

For a first drop, `gathered.without(is_known, first_id).median_side` is the size from which a side is chosen; `without`
leaves out what is known or repeated, and gives the rest their ids in the stream.

What the decoder said of a file is remembered (`decode_cache`): where no pixels are wanted, a file is decoded once in
its life. Nothing is put off until training meets a file: ids and batches depend on which files there are.
"""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data.arrays import square_arrays, square_picture
from ccl.data.dataset import BadImage, Progress
from ccl.data.decode_cache import DecodeCache, DecodeResult, cache_folder
from ccl.data.decoding import BadImageError, MissingDecoderError, in_full, is_heif, open_image, upright_rgb
from ccl.data.found_images import find_images
from ccl.data.gathered_images import Gathered, IsKnown, SourceNames
from ccl.data.in_memory import ImageCollector, content_digest, each
from ccl.data.remote_files import is_remote
from ccl.data.sources import ArraySource, ImageSource
from ccl.errors import UserError

MAX_BAD = 5.0  # percent
CHUNK = 512  # images whose pixels wait in memory at one time, and about which the cache is asked
_MAX_THREADS = 16


class TooManyBadError(UserError):
    """More files that are not usable images than may be left out; `bad` has all of them."""

    def __init__(self, bad: Sequence[BadImage], total: int, allowed: float) -> None:
        first = " ".join(str(bad[0]).split())  # a path may hold line breaks
        super().__init__(
            f"{len(bad)} of {total} images can't be decoded, the first is {first}; "
            f"delete or replace such files: more than {allowed:g} % are too many to leave out"
        )
        self.bad, self.share = tuple(bad), 100 * len(bad) / total  # in percent


def _none_is_known(digest: bytes) -> bool:
    return False


def gather(
    inputs: Sequence[str | Path],
    scratch: Path,
    progress: Progress | None = None,
    side: int | None = None,
    is_known: IsKnown = _none_is_known,
    max_bad: float = MAX_BAD,
) -> Gathered:
    """The images of folders (any layout), globs, archives, shards, lists of paths and single files, input by input.

    Within an input they are sorted, folder by folder; a list keeps its order. Archives are unpacked into `scratch`, a
    folder that must last as long as the images are read. `progress` is called with bytes of archives, then with
    images. More than `max_bad` percent of files that can't be decoded are refused.

    >>> Image.new("RGB", (32, 24)).save("photo.png")
    >>> ccl.gather(["photo.png"], scratch=Path("scratch")).names
    ('photo.png',)
    """
    source, names, notes = find_images(inputs, scratch, progress)
    return ingest(
        source, names, side=side, digests={}, is_known=is_known, notes=notes, progress=progress, max_bad=max_bad
    )


def gather_arrays(
    images: Iterable[object],
    progress: Progress | None = None,
    side: int | None = None,
    is_known: IsKnown = _none_is_known,
    max_bad: float = MAX_BAD,
) -> Gathered:
    """Images held in Python: arrays, tensors, PIL pictures, bytes of encoded images, paths of files, also mixed.

    An array or tensor of four dimensions is a batch. Arrays are (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4
    channels; where both are possible, an array is taken as (H, W, C) and a tensor as (C, H, W). Values are uint8, or
    floats in [0, 1]. The images stay arrays if all of them have one size, and files if all of them are paths; else
    they are kept encoded.
    """
    held = ImageCollector()
    for number, image in enumerate(each(images)):
        try:
            held.add(image)
        except UserError as error:
            raise UserError(f"image {number}: {error}") from error
    if not held.names:
        raise UserError("no images are given")
    return ingest(
        held.source(),
        held.names,
        side=side,
        digests=held.digests,
        is_known=is_known,
        notes=held.notes(),
        progress=progress,
        max_bad=max_bad,
    )


def squared(source: ImageSource, side: int, progress: Progress | None = None) -> ImageSource:
    """The centre squares of images that are all sound, with their ids; raises BadImageError where one is not."""
    if source.image_size == (side, side):
        return source
    found = ingest(source, side=side, progress=progress)
    for bad in found.skipped:
        raise BadImageError(bad.reason, Path(bad.path))
    return found.source.with_ids(source.ids)


class _OpenedImage(NamedTuple):
    """What opening an image once gave."""

    reason: str = ""  # why it is left out; "" for a sound image
    shorter_side: int = 0
    is_decoded: bool = False  # so that the reason is the decoder's, and holds as long as the file is the same
    is_known: bool = False
    digest: bytes = b""
    pixels: NDArray[np.uint8] | None = None  # (side, side, 3)


def ingest(
    source: ImageSource,
    names: Sequence[str] | None = None,
    *,
    side: int | None = None,
    digests: Mapping[int, bytes] | None = None,
    is_known: IsKnown = _none_is_known,
    first_id: int = 0,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
) -> Gathered:
    """The sound images of a source, with ids from `first_id` on; more than `max_bad` percent of others are refused.

    `digests` are known ones by position, the others are taken from the files' bytes; None: no digests are wanted.
    """
    if names is None:
        names = SourceNames(source, range(len(source)))
    size, trouble = source.image_size, ""
    if size is None:
        looks, squares, trouble = _read(source, side, digests, is_known, progress)
    else:  # arrays: all of them are sound
        looks = [_OpenedImage(digest=(digests or {}).get(at, b""), shorter_side=min(size)) for at in range(len(source))]
        squares = None if side is None or size == (side, side) else square_arrays(source, side)
    bad = [BadImage(_tidy(names[at]), look.reason) for at, look in enumerate(looks) if look.reason]
    if len(bad) > max_bad / 100 * len(source):
        raise TooManyBadError(bad, len(source), max_bad)
    kept = [at for at, look in enumerate(looks) if not look.reason and not look.is_known]
    positions, ids = torch.tensor(kept, dtype=torch.int64), first_id + torch.arange(len(kept))  # (N,), (N,)
    part = source if len(kept) == len(source) or squares is not None else source.subset(positions)
    return Gathered(
        source=part.with_ids(ids) if squares is None else ArraySource(squares, ids),
        names=SourceNames(source, kept) if isinstance(names, SourceNames) else tuple(names[at] for at in kept),
        digests=tuple(looks[at].digest for at in kept),
        shorter_sides=torch.tensor([looks[at].shorter_side for at in kept], dtype=torch.int64),
        positions=positions,
        skipped=tuple(bad),
        notes=(*notes, trouble) if trouble else tuple(notes),
        num_known=sum(look.is_known for look in looks),
        originals=source.subset(positions) if squares is not None and size is None else None,
    )


def _read(
    source: ImageSource,
    side: int | None,
    digests: Mapping[int, bytes] | None,
    is_known: IsKnown,
    progress: Progress | None,
) -> tuple[list[_OpenedImage], Tensor | None, str]:
    """What was seen at each position, the pixels (N, 3, side, side) where a side is given, trouble with the cache."""
    looks: list[_OpenedImage] = []
    chunks: list[Tensor] = []
    report = progress or (lambda done, total: None)
    look = partial(_open, source, side, digests, is_known)
    is_opened = side is not None or digests is not None  # even where the decoder's verdict is known
    with DecodeCache(cache_folder()) as cache, ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        for start in range(0, len(source), CHUNK):
            positions = range(start, min(start + CHUNK, len(source)))
            keys = source.decode_keys(positions)
            known = cache.known(keys)
            verdicts = [known.get(key or b"") for key in keys]
            # Threads help, as Pillow drops the interpreter lock while it decodes; where nothing is opened they don't.
            some = list((pool.map if is_opened or None in verdicts else map)(look, positions, verdicts))
            # Kept at once, so that a pass that is stopped resumes where it was.
            decoded = [(key, one[:2]) for key, one in zip(keys, some, strict=True) if key and one.is_decoded]
            cache.keep({key: DecodeResult(*result) for key, result in decoded})
            pixels = [torch.from_numpy(one.pixels).permute(2, 0, 1) for one in some if one.pixels is not None]
            chunks += [torch.stack(pixels)] if pixels else []  # (n, 3, side, side)
            looks += [one if one.pixels is None else one._replace(pixels=None) for one in some]
            for at in positions:
                report(at + 1, len(source))
    if side is None:
        return looks, None, cache.trouble or ""
    whole = torch.empty(sum(map(len, chunks)), 3, side, side, dtype=torch.uint8)
    end = len(whole)
    while chunks:  # emptied on the way: `cat` would have all of them in memory twice
        chunk = chunks.pop()
        whole[end - len(chunk) : end] = chunk
        end -= len(chunk)
    return looks, whole, cache.trouble or ""


def _open(
    source: ImageSource,
    side: int | None,
    digests: Mapping[int, bytes] | None,
    is_known: IsKnown,
    position: int,
    verdict: DecodeResult | None,
) -> _OpenedImage:
    """An image opened once; `verdict` is what the decoder said of it before, None where that is not known."""
    if verdict is not None and (verdict.reason or (side is None and digests is None)):
        return _OpenedImage(*verdict)
    try:
        content = source.encoded(position)
    except BadImageError as error:
        return _OpenedImage(error.reason)
    digest = b"" if digests is None else digests.get(position) or content_digest(content)
    if is_known(digest):
        return _OpenedImage(is_known=True, digest=digest)
    if verdict is not None and side is None:
        return _OpenedImage(*verdict, digest=digest)
    try:
        with open_image(io.BytesIO(content)) as image:
            shorter_side = min(image.size)
            # An eighth of the size is twice as fast and finds the same: all of a JPEG is read, less is put out.
            picture = upright_rgb(image, in_full if side is not None else lambda width, height: 8)
    except BadImageError as error:
        return _OpenedImage(error.reason, is_decoded=not isinstance(error, MissingDecoderError))
    pixels = None if side is None else square_picture(picture, side)
    # Whether HEIC can be read depends on what is installed, not on the file: nothing remembers it.
    return _OpenedImage("", shorter_side, not is_heif(content), False, digest, pixels)


def _tidy(name: str) -> str:
    """ "./a.png" as "a.png"; the address of a record in a store as it is."""
    return name if is_remote(name) else str(Path(name))
