"""The door: what a user names or holds becomes `Found`, a source of images with their names; nothing is decoded yet."""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data.archives import SUFFIXES as ARCHIVE_SUFFIXES
from ccl.data.archives import is_archive_name, unpack
from ccl.data.dataset import Progress
from ccl.data.decoding import SUFFIXES, encode_png, is_image_name
from ccl.data.folders import below, is_dir, is_image, matches
from ccl.data.image_sources import ArraySource, EncodedSource, FileSource, ImageSource, JoinedSource
from ccl.data.pixels import content_digest, rgb_pixels
from ccl.data.shards import PREFIX, open_shards, shard_paths
from ccl.errors import UserError

Images = str | Path | Iterable[Any]  # paths and folders, arrays, tensors, or anything that yields images
RawImage = NDArray[np.uint8] | bytes | str  # pixels (H, W, 3), an encoded image, the path of a file

_MAX_LINE = 1 << 16  # bytes; longer than any path
_KNOWN = (
    f"images end in {', '.join(sorted(SUFFIXES))}; archives in {', '.join(ARCHIVE_SUFFIXES)}; "
    "shards are given as shards:PATTERN"
)


@dataclass(frozen=True)
class Found:
    """Images that are not yet looked into."""

    source: ImageSource
    given_names: Sequence[str] | None = None  # where these are others than the source's own
    notes: tuple[str, ...] = ()  # what was skipped or chosen, one line each
    digests: Mapping[int, bytes] = field(default_factory=dict)  # of those that came as pixels, by position

    def name(self, position: int) -> str:
        """What people call an image: a path, "archive.zip::inner/path.png" or "image 17"."""
        return self.source.name(position) if self.given_names is None else self.given_names[position]

    @property
    def names(self) -> tuple[str, ...]:
        """Made when asked for: a million are a hundred megabytes."""
        return tuple(map(self.name, range(len(self.source))))

    def subset(self, positions: Tensor) -> "Found":
        """The images at these positions, without the notes."""
        places = positions.tolist()
        names = None if self.given_names is None else [self.given_names[place] for place in places]
        digests = {at: self.digests[place] for at, place in enumerate(places) if place in self.digests}
        return Found(self.source.subset(positions), names, (), digests)


def find_images(images: Images, scratch: Path, progress: Progress | None = None) -> Found:
    """Images of folders (any layout), globs, archives, shards, lists of paths and single files, input by input.

    Within an input they are sorted, folder by folder; a list keeps its order. Archives are unpacked into `scratch`, a
    folder that must last as long as the images are read. What is not a path is taken as by `find_held`.
    """
    named = [images] if isinstance(images, str | Path) else images
    if not isinstance(named, Sequence) or not all(isinstance(item, str | Path) for item in named):
        return find_held(named)
    items = [os.fspath(item) for item in named]
    if not items:
        raise UserError("no images are given; name folders, images, archives, lists of paths or shards")
    parts: list[Found] = []
    for is_sharded, some in groupby(items, key=lambda item: item.startswith(PREFIX)):
        if is_sharded:
            paths = [path for item in some for path in shard_paths(item.removeprefix(PREFIX))]
            sharded = open_shards(paths, progress)
            parts.append(Found(sharded.source, notes=sharded.notes))
        else:
            files = _Files(scratch, progress)
            for item in some:
                files.add(item)
            parts.append(Found(FileSource(files.paths), files.names, files.notes()))
    if len(parts) == 1:
        return parts[0]
    joined = JoinedSource([part.source for part in parts])
    every_name = tuple(name for part in parts for name in part.names)
    notes = tuple(line for part in parts for line in part.notes)
    return Found(joined.with_ids(torch.arange(len(joined))), every_name, notes)


class _Files:
    """Files that are called like images, input by input and sorted within each; nothing of them is read yet."""

    def __init__(self, scratch: Path, progress: Progress | None) -> None:
        self.names: list[str] = []  # for people: as given and found, or "archive.zip::inner/path.png"
        self.paths: list[str] = []  # where they lie, absolute
        self._skipped: Counter[str] = Counter()  # other files, by what they are
        self._scratch, self._progress, self._here = scratch, progress, os.getcwd()

    def add(self, text: str, bases: Sequence[str] = ("",), *, is_listed: bool = False) -> None:
        """Add the images that an input names, below the first base where it exists; refuses one without images."""
        num_images, num_others = len(self.names), self._skipped.total()
        places = [os.path.join(base, os.path.expanduser(text)) for base in bases]
        if there := [place for place in places if os.path.lexists(place)]:
            self._take(there[0], is_listed)
        elif glob.has_magic(text):
            self._take_matches(text, places)
        else:
            raise UserError(f"there is no file or folder {text!r}; it was looked for in {self._here!r}")
        if len(self.names) == num_images:
            others = self._skipped.total() - num_others
            raise UserError(f"{text!r} holds no images, and {others} other files; {_KNOWN}")

    def notes(self) -> tuple[str, ...]:
        """A line on what was skipped, if anything was."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in self._skipped.most_common(5))
        return (f"{self._skipped.total()} files are not images and are skipped: {kinds}",) if kinds else ()

    def _take(self, path: str, is_listed: bool) -> None:
        if os.path.isdir(path):
            for entry in below(path):
                if is_image(entry):
                    self._keep(entry.path, entry.path)
                elif not is_dir(entry):
                    self._skip(entry.path)
        elif not os.path.isfile(path):
            raise UserError(f"{path!r} is neither a file nor a folder")
        elif is_image_name(path):
            self._keep(path, path)
        elif is_archive_name(path):
            unpacked = unpack(Path(path), self._scratch, self._progress)
            for member, file in zip(unpacked.members, unpacked.paths, strict=True):
                self._keep(f"{path}::{member}", file)
            for member in unpacked.others:
                self._skip(member)
        elif is_listed or b"\0" in _read(path, _MAX_LINE):
            raise UserError(f"{path!r} is not an image, archive or list of paths; {_KNOWN}")
        else:
            self._take_list(path)

    def _take_list(self, path: str) -> None:
        """Each line that is no comment is an input of its own, below the folder of the list or the current one."""
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), start=1):
                text = line.removeprefix(b"\xef\xbb\xbf").strip()  # some editors put a mark before the first
                if not text or text.startswith(b"#"):
                    continue
                try:
                    self.add(os.fsdecode(text), (os.path.dirname(path), ""), is_listed=True)
                except UserError as error:
                    raise UserError(f"list of paths {path!r}, line {number}: {error}") from error

    def _take_matches(self, pattern: str, places: Sequence[str]) -> None:
        """Other than files that are named, matches may be anything: what is not an image is skipped."""
        found = next(filter(None, map(matches, places)), None)
        if found is None:
            raise UserError(f"nothing matches {pattern!r}; it was looked for in {self._here!r}")
        folder = None
        for path in found:
            if folder is not None and path.startswith(os.path.join(folder, "")):
                continue  # it came with the folder
            if os.path.isdir(path):
                folder = path
            if os.path.isdir(path) or (os.path.isfile(path) and (is_image_name(path) or is_archive_name(path))):
                self._take(path, is_listed=True)
            else:
                self._skip(path)

    def _keep(self, name: str, path: str) -> None:
        self.names.append(name)
        self.paths.append(os.path.join(self._here, path))  # join leaves absolute names alone

    def _skip(self, name: str) -> None:
        if is_image_name(name):
            kind = "links to nowhere, devices or sparse files"
        elif is_archive_name(name):
            kind = "archives (give them by their names)"
        else:
            kind = repr(os.path.splitext(name)[1].lower())
        self._skipped[kind] += 1


def _read(path: str, num_bytes: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise UserError(f"can't read {path!r}: {error.strerror}") from error


def find_held(images: Iterable[object]) -> Found:
    """Images held in Python: arrays, tensors, PIL pictures, bytes of encoded images, paths of files, also mixed.

    An array or tensor of four dimensions is a batch. Arrays are (H, W), (H, W, C) or (C, H, W) with 1 or 3
    channels; where both are possible, an array is taken as (H, W, C) and a tensor as (C, H, W). Values are uint8, or
    floats in [0, 1]. The images stay arrays if all of them have one size, and files if all of them are paths; else
    they are kept encoded.
    """
    things: list[RawImage] = []
    names: list[str] = []
    digests: dict[int, bytes] = {}
    kinds: set[object] = set()
    for number, image in enumerate(_each(images)):
        try:
            thing = _taken(image)
            was_mixed = len(kinds) > 1
            kinds.add(thing.shape if isinstance(thing, np.ndarray) else type(thing))
            things.append(thing)
            if len(kinds) > 1:
                start = number if was_mixed else 0
                things[start:] = map(_encoded, things[start:])
        except UserError as error:
            raise UserError(f"image {number}: {error}") from error
        names.append(thing if isinstance(thing, str) else f"image {number}")
        if isinstance(thing, np.ndarray):
            digests[number] = content_digest(repr(thing.shape).encode(), np.ascontiguousarray(thing).data)
    if not names:
        raise UserError("no images are given")
    return Found(_source(things), names, digests=digests)


def _source(things: Sequence[RawImage]) -> ImageSource:
    """Images of one kind, with ids 0 … N-1; only arrays are known to be sound."""
    pixels = [thing for thing in things if isinstance(thing, np.ndarray)]
    if pixels:
        return ArraySource(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous())
    paths = [thing for thing in things if isinstance(thing, str)]
    if paths:
        return FileSource([os.path.abspath(path) for path in paths])
    return EncodedSource([thing for thing in things if isinstance(thing, bytes)])


def _each(images: Iterable[object]) -> Iterable[object]:
    """The images one by one; refuses what may be one image or many."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim != 4:
        raise UserError(
            f"an array of shape {tuple(images.shape)} is not a batch of images (N, H, W, C) or (N, C, H, W); "
            "put a single image into a list"
        )
    if isinstance(images, str | Path | bytes | bytearray | memoryview | Image.Image):
        return [images]
    if not isinstance(images, Iterable) and not hasattr(images, "__getitem__"):
        raise UserError(f"images must be an iterable, not {type(images).__name__}")
    return images


def _taken(image: object) -> RawImage:
    if isinstance(image, np.ndarray | Tensor | Image.Image):
        return rgb_pixels(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | Path):
        if not os.path.isfile(image):
            raise UserError(f"there is no file {os.fspath(image)!r}")
        return os.fspath(image)
    raise UserError(
        f"is of type {type(image).__name__}; give an array, a tensor, a PIL picture, bytes of an image file or a path"
    )


def _encoded(thing: RawImage) -> bytes:
    if isinstance(thing, bytes):
        return thing
    if isinstance(thing, np.ndarray):
        return encode_png(Image.fromarray(thing))
    return _read(thing)
