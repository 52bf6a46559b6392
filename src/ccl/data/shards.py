"""Images in shards, read in place by position: which shards a pattern names, their images, and them as a dataset."""

import glob
import hashlib
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data import object_store
from ccl.data.dataset import MAX_BAD, BadImage, Dataset, Progress, labelled_dataset
from ccl.data.decoding import refuse_length
from ccl.data.folders import matches
from ccl.data.image_sources import ImageSource
from ccl.data.object_store import is_remote
from ccl.data.parquet_shards import index_parquet, open_parquet
from ccl.data.shard_index import Reader, Shard, ShardIndex, index_of
from ccl.data.tar_shards import index_tar, open_tar
from ccl.errors import UserError, masked

PREFIX = "shards:"  # before a pattern, wherever images or datasets are named
FORMATS = {".tar": (index_tar, open_tar), ".parquet": (index_parquet, open_parquet)}  # how each is indexed, read
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_SHARDS = 1_000_000
_OPEN_SHARDS = 64  # of a process
_TEST_NAMES = ("val", "test")  # how the names of test shards, or of their folders, begin


class ShardSource(ImageSource):
    """Images in shards, ten bytes each beside their ids: a shard's number, a place in it and a size."""

    def __init__(self, shards: Sequence[Shard], records: NDArray[np.void], ids: Tensor | None = None) -> None:
        self.shards, self.records = tuple(shards), records  # (N,) of "shard", "place" and "size"
        self.ids = torch.arange(len(records)) if ids is None else ids  # (N,)

    def name(self, position: int) -> str:
        number, place, _ = self.records[position].item()
        shard = self.shards[number]
        try:
            index = _recent_index(shard)
        except (OSError, ValueError):  # gone or changed
            return f"{masked(shard.path)}::{place}"
        key = index.keys[int(np.searchsorted(index.records["place"], place))] if index.keys else place
        return f"{masked(shard.path)}::{key}"

    def encoded(self, position: int) -> bytes:
        number, place, num_bytes = self.records[position].item()
        with self.naming_errors(position):
            refuse_length(num_bytes or 1)  # before it is read; 0 may mean that it is not known
            content = _reader(self.shards[number], os.getpid())(place, num_bytes)
            refuse_length(len(content))
            return content

    def content_parts(self) -> Iterator[bytes | memoryview]:
        for shard in self.shards:
            yield f"{os.path.basename(shard.path)} {shard.num_bytes}".encode(errors="surrogateescape")
        for name in ("shard", "place", "size"):
            yield np.ascontiguousarray(self.records[name]).data.cast("B")

    def change(self) -> tuple[bytes, int]:
        state = hashlib.sha256(repr(self.shards).encode(errors="surrogateescape"))
        state.update(self.records.view(np.uint8).data)
        return state.digest(), max((shard.changed_ns for shard in self.shards), default=0)

    def subset(self, positions: Tensor) -> ImageSource:
        # Only the shards that are wanted, so that a batch that is sent to a worker does not carry the others with it.
        records = self.records[positions.numpy()]
        used, records["shard"] = np.unique(records["shard"], return_inverse=True)
        return ShardSource([self.shards[number] for number in used.tolist()], records, self.ids[positions])


# By process, so that a forked worker opens its own. What falls out is closed when no thread reads from it any more.
@lru_cache(maxsize=_OPEN_SHARDS)
def _reader(shard: Shard, process: int) -> Reader:
    return FORMATS[_suffix(shard.path)][1](shard)


def _index(shard: Shard) -> ShardIndex:
    return index_of(shard, FORMATS[_suffix(shard.path)][0])


# A few: names are asked for shard by shard, and the keys of one can be megabytes.
_recent_index = lru_cache(maxsize=4)(_index)


class ShardedImages(NamedTuple):
    """All images of some shards, in the order of the shards and of each."""

    source: ShardSource
    labels: NDArray[np.int32]  # (N,) in class_names; -1 where there is none
    class_names: list[str]  # by number if all are numbers, else by name
    notes: tuple[str, ...]  # what was skipped, one line each


def open_shards(paths: Sequence[str], progress: Progress | None = None) -> ShardedImages:
    """The images of these shards; every shard that has no index yet is read once. `progress` counts bytes."""
    shards = [Shard.found(path) for path in paths]
    for path, count in Counter(os.path.realpath(shard.path) for shard in shards).items():
        if count > 1:
            raise UserError(f"shard {path!r} is named twice")
    kind = np.dtype([("shard", np.min_scalar_type(len(shards))), ("place", np.uint32), ("size", np.uint32)])
    # Buffers that grow in place: joining NumPy arrays would have all of them in memory twice.
    records, hashes = bytearray(), array("q")
    labels: list[tuple[NDArray[np.int32], Sequence[str]]] = []  # of each shard, in class names of its own
    notes: list[str] = []
    done, total = 0, sum(shard.num_bytes for shard in shards)
    for number, shard in enumerate(shards):
        index = _index(shard)
        part = np.full(len(index.records), number, kind)
        part["place"], part["size"] = index.records["place"], index.records["size"]
        records += part.tobytes()
        hashes.extend(map(hash, index.keys))
        labels.append((index.records["label"].copy(), index.class_names))
        notes += [f"{shard.path}: {line}" for line in index.notes]
        done += shard.num_bytes
        if progress is not None:
            progress(done, total)
    _refuse_repeated_keys(shards, np.frombuffer(hashes, np.int64))
    if not records:
        raise UserError(f"the {len(shards)} shards hold no images, the first is {shards[0].path!r}")
    names = {name for _, own in labels for name in own}
    are_numbers = all(name.isdecimal() for name in names)
    class_names = sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))
    numbers = {name: number for number, name in enumerate(class_names)}
    # The last number of a table stands for "no label", -1.
    tables = [np.array([*(numbers[name] for name in own), -1], np.int32) for _, own in labels]
    return ShardedImages(
        ShardSource(shards, np.frombuffer(records, kind)),
        np.concatenate([table[some] for table, (some, _) in zip(tables, labels, strict=True)]),
        class_names,
        tuple(notes),
    )


def _refuse_repeated_keys(shards: Sequence[Shard], hashes: NDArray[np.int64]) -> None:
    """Keys must be distinct over all shards: a shard that was copied would put the same images on both sides of a test.

    The hashes are sorted in place.
    """
    hashes.sort()
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    if len(repeated):
        found = [(shard.path, key) for shard in shards for key in _index(shard).keys if hash(key) == repeated[0]]
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
            found += object_store.find(text) if glob.has_magic(text) else [text]
            continue
        path = os.path.join(base, os.path.expanduser(text))
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if _suffix(name) in FORMATS and not name.startswith("."))
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
        if _suffix(path) not in FORMATS:
            raise UserError(f"{path!r} is not a shard: they end in {', '.join(FORMATS)}")
    return found


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
    width = len(first) if first.startswith("0") else 0
    most = int(first) + _MOST_SHARDS  # one too many, to be refused
    return [str(number).zfill(width) for number in range(int(first), min(int(last), most) + 1)]


def read_shards(pattern: str, root: Path, progress: Progress | None = None) -> Dataset:
    """The dataset in the shards that a pattern names below the data root; only indices are read.

    Labels come from the records; the test part is shards called val… or test…, else every fifth record of each class.
    """
    paths = shard_paths(pattern, root)
    are_test = np.array([_is_test(path, root) for path in paths])
    if are_test.all():
        raise UserError(f"all shards of {pattern!r} are called val… or test…, so there is nothing to learn from")
    whole = open_shards(paths, progress)  # both parts at once: keys must be distinct over both
    is_test, is_labelled = are_test[whole.source.records["shard"]], whole.labels >= 0
    name = os.path.basename(masked(pattern)) or root.resolve().name
    if is_labelled.any():
        return labelled_dataset(name, *whole[:3], is_test, _unlabelled(whole, is_labelled), whole.notes)
    train, notes = whole.source.subset(torch.from_numpy(np.flatnonzero(~is_test))), whole.notes
    if are_test.any():
        notes = (*notes, f"{pattern}: its images have no labels, so the test shards are skipped")
    return Dataset(name, train, None, None, None, (), "", notes=notes)


def _is_test(path: str, root: Path) -> bool:
    # Of a path in a store without scheme and bucket, else below the root: neither may be called test by chance.
    below = "/".join(path.split("/")[3:]) if is_remote(path) else os.path.relpath(path, root)
    folder, name = os.path.split(below)
    return name.lower().startswith(_TEST_NAMES) or os.path.basename(folder).lower().startswith(_TEST_NAMES)


def _unlabelled(whole: ShardedImages, is_labelled: NDArray[np.bool_]) -> tuple[BadImage, ...]:
    """Records without a label among others that have one, as images that are left out."""
    missing = np.flatnonzero(~is_labelled).tolist()
    if len(missing) > MAX_BAD / 100 * len(whole.source):
        raise UserError(
            f"{len(missing)} of {len(whole.source)} records have no label, the first is "
            f"{whole.source.name(missing[0])}; label all of them, or none"
        )
    return tuple(BadImage(whole.source.name(at), "it has no label, and others have one") for at in missing)
