"""Images in shards, read in place by position: which shards a pattern names, and the images of all of them."""

import glob
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data import remote_files
from ccl.data.dataset import Progress
from ccl.data.decoding import BadImageError, Reduction, decode, errors_as_bad_image, in_full, refuse_length
from ccl.data.folders import matches
from ccl.data.parquet_shards import PARQUET
from ccl.data.remote_files import is_remote
from ccl.data.shard_index import Shard, ShardIndex, ShardReader, index_of, recent_index
from ccl.data.sources import ImageSource
from ccl.data.tar_shards import TAR
from ccl.errors import UserError

PREFIX = "shards:"  # before a pattern, wherever images or datasets are named
KINDS = {".tar": TAR, ".parquet": PARQUET}
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_SHARDS = 1_000_000
_OPEN_SHARDS = 64  # of a process
_FEW_CLASSES = 1 << 15  # whose numbers take two bytes


class ShardSource(ImageSource):
    """Images in shards, ten bytes each beside their ids: a shard's number, a place in it and a size."""

    def __init__(
        self,
        shards: Sequence[Shard],
        numbers: NDArray[np.unsignedinteger],
        places: NDArray[np.uint32],
        sizes: NDArray[np.uint32],
        ids: Tensor | None = None,
    ) -> None:
        self.shards = tuple(shards)
        self.numbers, self._places, self._sizes = numbers, places, sizes  # (N,) each
        self.ids = torch.arange(len(places)) if ids is None else ids  # (N,)

    def name(self, position: int) -> str:
        shard, place = self.shards[self.numbers[position]], self._places[position]
        try:
            index = recent_index(shard, KINDS[_suffix(shard.path)])
        except (OSError, ValueError):  # gone or changed
            return f"{shard.path}::{place}"
        key = index.keys[int(np.searchsorted(index.places, place))] if index.keys else place
        return f"{shard.path}::{key}"

    @contextmanager
    def _errors_as_bad_image(self, position: int) -> Iterator[None]:
        try:
            with errors_as_bad_image():
                yield
        except BadImageError as error:  # only now is the name needed
            raise BadImageError(error.reason, Path(self.name(position))) from error

    def encoded(self, position: int) -> bytes:
        num_bytes = int(self._sizes[position])
        with self._errors_as_bad_image(position):
            refuse_length(num_bytes or 1)  # before it is read; 0 may mean that it is not known
            reader = _reader(self.shards[self.numbers[position]], os.getpid())
            content = reader.read(int(self._places[position]), num_bytes)
            refuse_length(len(content))
            return content

    def picture(self, position: int, reduction: Reduction = in_full) -> Image.Image:
        content = self.encoded(position)
        with self._errors_as_bad_image(position):
            return decode(BytesIO(content), reduction)

    def content_parts(self) -> Iterator[bytes | memoryview]:
        for shard in self.shards:
            yield f"{os.path.basename(shard.path)} {shard.num_bytes}".encode(errors="surrogateescape")
        for values in (self.numbers, self._places, self._sizes):
            yield np.ascontiguousarray(values).data.cast("B")

    def subset(self, positions: Tensor) -> ImageSource:
        # Only the shards that are wanted, so that a batch that is sent to a worker does not carry the others with it.
        at = positions.numpy()
        used, numbers = np.unique(self.numbers[at], return_inverse=True)
        shards = [self.shards[number] for number in used.tolist()]
        return ShardSource(
            shards, numbers.astype(self.numbers.dtype), self._places[at], self._sizes[at], self.ids[positions]
        )


# By process, so that a forked worker opens its own. What falls out is closed when no thread reads from it any more.
@lru_cache(maxsize=_OPEN_SHARDS)
def _reader(shard: Shard, process: int) -> ShardReader:
    return KINDS[_suffix(shard.path)].open(shard)


@dataclass(frozen=True)
class ShardedImages:
    """All images of some shards, in the order of the shards and of each."""

    source: ShardSource
    labels: NDArray[np.signedinteger]  # (N,) in class_names; -1 where there is none; (0,) if they are not wanted
    class_names: tuple[str, ...]  # in the order in which they came
    notes: tuple[str, ...]  # what was skipped, one line each


def open_shards(paths: Sequence[str], progress: Progress | None = None, *, with_labels: bool = True) -> ShardedImages:
    """The images of these shards; every shard that has no index yet is read once. `progress` counts bytes."""
    shards = [Shard.found(path) for path in paths]
    _refuse_twice(shards)
    # Arrays that grow in place: joining NumPy arrays would have all of them in memory twice.
    places, sizes, labels, hashes = array("I"), array("I"), array("h"), array("Q")
    counts: list[int] = []
    classes: dict[str, int] = {}
    notes: list[str] = []
    done, total = 0, sum(shard.num_bytes for shard in shards)
    for shard in shards:
        index = index_of(shard, KINDS[_suffix(shard.path)])
        counts.append(len(index.places))
        places.frombytes(index.places.tobytes())
        sizes.frombytes(index.sizes.tobytes())
        if with_labels:
            some = _renumbered(index, classes)
            if len(classes) > _FEW_CLASSES and labels.typecode == "h":
                labels = array("i", labels)
            labels.frombytes(some.astype(labels.typecode).tobytes())
        hashes.frombytes(index.key_hashes.tobytes())
        notes += [f"{shard.path}: {line}" for line in index.notes]
        done += shard.num_bytes
        if progress is not None:
            progress(done, total)
    _refuse_repeated_keys(shards, np.frombuffer(hashes, np.uint64))
    del hashes
    numbers = np.repeat(np.arange(len(shards), dtype=np.min_scalar_type(len(shards))), counts)
    source = ShardSource(shards, numbers, np.frombuffer(places, np.uint32), np.frombuffer(sizes, np.uint32))
    if not len(source):
        raise UserError(f"the {len(shards)} shards hold no images, the first is {shards[0].path!r}")
    return ShardedImages(source, np.frombuffer(labels, labels.typecode), tuple(classes), tuple(notes))


def _renumbered(index: ShardIndex, classes: dict[str, int]) -> NDArray[np.int32]:
    """An index's labels in the classes of all shards, to which its own are added."""
    table = [classes.setdefault(name, len(classes)) for name in index.class_names]
    return np.array([*table, -1], np.int32)[index.labels]  # the last one stands for "no label"


def _refuse_twice(shards: Sequence[Shard]) -> None:
    seen: dict[str, str] = {}
    for shard in shards:
        real = os.path.realpath(shard.path)
        if real in seen:
            raise UserError(f"shard {shard.path!r} is named twice (also as {seen[real]!r})")
        seen[real] = shard.path


def _refuse_repeated_keys(shards: Sequence[Shard], hashes: NDArray[np.uint64]) -> None:
    """Keys must be distinct over all shards: a shard that was copied would put the same images on both sides of a test.

    The hashes are sorted in place.
    """
    hashes.sort()
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(repeated):
        return
    found: list[tuple[str, str]] = []
    for shard in shards:
        index = index_of(shard, KINDS[_suffix(shard.path)])
        found += [(shard.path, index.keys[at]) for at in np.nonzero(index.key_hashes == repeated[0])[0].tolist()]
        if len(found) > 1:
            break
    (first, key), (second, _) = found[:2]
    where = f"{first!r} twice" if first == second else f"both {first!r} and {second!r}"
    raise UserError(f"the key {key!r} is in {where}; keys must be distinct over all shards (is one a copy?)")


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def shard_paths(pattern: str, base: Path | str = "") -> list[str]:
    """The shards that a pattern names below a folder: {000..012} and {a,b} in its order, globs and folders by name."""
    found: list[str] = []
    for text in _expanded(pattern):
        if is_remote(text):
            found += remote_files.find(text) if glob.has_magic(text) else [text]
            continue
        path = os.path.join(base, os.path.expanduser(text))
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if _suffix(name) in KINDS and not name.startswith("."))
            found += [os.path.join(path, name) for name in names]
        elif os.path.lexists(path):
            found.append(path)
        elif glob.has_magic(text):
            found += [path for path in matches(path) if os.path.isfile(path)]
        else:
            raise UserError(f"there is no shard {path!r}, which {PREFIX}{pattern} names")
    if not found:
        raise UserError(f"{PREFIX}{pattern} names no shards; it was looked for in {os.path.abspath(base)!r}")
    for path in found:
        if _suffix(path) not in KINDS:
            raise UserError(f"{path!r} is not a shard: they end in {', '.join(KINDS)}")
    return found


def absolute_input(text: str) -> str:
    """An input as a process with another current folder has to name it."""
    is_sharded = text.startswith(PREFIX)
    pattern = text.removeprefix(PREFIX)
    first = next(_expanded(pattern)) if is_sharded else pattern
    if not (is_remote(first) or os.path.isabs(first)):
        pattern = os.path.join(os.getcwd(), os.path.expanduser(pattern))
    return f"{PREFIX}{pattern}" if is_sharded else pattern


def _expanded(pattern: str) -> Iterator[str]:
    """The pattern with each of its braces replaced by each of what they hold, as shells do."""
    parts = _BRACES.split(pattern)  # text and the insides of braces in turn
    choices = [_choices(part) if number % 2 else [part] for number, part in enumerate(parts)]
    if np.prod([len(some) for some in choices], dtype=object) > _MOST_SHARDS:
        raise UserError(f"{PREFIX}{pattern} names more than {_MOST_SHARDS:,} shards")
    return ("".join(some) for some in product(*choices))


def _choices(inside: str) -> Sequence[str]:
    if (numbers := _RANGE.fullmatch(inside)) is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last = numbers.groups()
    if not 0 <= int(last) - int(first) < _MOST_SHARDS:
        raise UserError(f"{{{inside}}} counts down, or to more than {_MOST_SHARDS:,}")
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
