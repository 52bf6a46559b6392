"""The index of one shard's images: made in one pass, and kept in the user's cache folder.

A shard is a file of many images that is read in place. Its index is known by the shard's path, size and time of change;
deleting it is always safe.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccl.atomic_files import replacing
from ccl.data import object_store
from ccl.errors import UserError

_FORMAT = 2  # of an index in the cache
# A file changed twice within a tick of the clock looks unchanged: the index of a younger one is not kept.
SETTLED_NS = 2_000_000_000


def cache_folder() -> Path:
    """The cache folder: CCL_CACHE, else XDG_CACHE_HOME/ccl, else ~/.cache/ccl."""
    chosen = os.environ.get("CCL_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ccl")
    return Path(chosen).expanduser()


@dataclass(frozen=True)
class Shard:
    """A shard as it was when it was indexed."""

    path: str  # absolute, or in a store
    num_bytes: int
    changed_ns: int  # its time of change, or what a store has instead

    @classmethod
    def found(cls, path: str) -> "Shard":
        """The shard at a path, as it is now."""
        if object_store.is_remote(path):
            return cls(path, *object_store.look_up(path))
        try:
            about = os.stat(path)
        except OSError as error:
            raise UserError(f"can't open shard {path!r}: {error.strerror}") from error
        return cls(os.path.abspath(path), about.st_size, about.st_mtime_ns)

    def check(self) -> None:
        """Refuse a shard that is not what was indexed: its places would hold something else."""
        if Shard.found(self.path) != self:
            raise ValueError("the shard was changed after it was indexed; start again")

    def open(self) -> BinaryIO:
        """Its bytes, to be read from the beginning on or by seeking."""
        return object_store.open_remote(self.path) if object_store.is_remote(self.path) else open(self.path, "rb")


# Of an image: in a tar the block of 512 bytes where it begins, in Parquet its row; its length in bytes, 0 where the
# place is enough; its label among the class names, -1 for none.
RECORD = np.dtype([("place", np.uint32), ("size", np.uint32), ("label", np.int32)])


class ShardIndex(NamedTuple):
    """The n images of a shard, in its order."""

    records: NDArray[np.void]  # (n,) of RECORD
    class_names: Sequence[str]
    keys: Sequence[str] = ()  # n; none where an image is known by its place only
    notes: Sequence[str] = ()  # what was skipped, one line each, without the shard's name


# From a place and a number of bytes to the file of the image there; raises ValueError or OSError where there is none.
# Threads may read at one time.
Reader = Callable[[int, int], bytes]


def _is_sound(index: ShardIndex) -> bool:
    labels, names = index.records["label"], index.class_names
    has_lists = all(isinstance(one, str) for part in (names, index.keys, index.notes) for one in part)
    are_known = len(labels) == 0 or bool((labels >= -1).all() and (labels < len(names)).all())
    return index.records.dtype == RECORD and has_lists and are_known and len(index.keys) in (0, len(labels))


def index_of(shard: Shard, make: Callable[[Shard], ShardIndex]) -> ShardIndex:
    """The index as it was kept, or a new one, which is kept where that is possible."""
    whole = b"%b\0%d %d %d" % (os.fsencode(shard.path), shard.num_bytes, shard.changed_ns, _FORMAT)
    path = cache_folder() / "shards" / f"{hashlib.blake2b(whole, digest_size=16).hexdigest()}.npz"
    # Where there is none, or a broken one, a new one is made: NumPy and zipfile raise many kinds for broken files.
    with suppress(Exception), np.load(path, allow_pickle=False) as kept:
        index = ShardIndex(kept["records"], *json.loads(kept["names"].tobytes()))
        if _is_sound(index):
            return index
    shard.check()
    index = make(shard)
    if shard.changed_ns <= time.time_ns() - SETTLED_NS:
        names = np.frombuffer(json.dumps(index[1:]).encode(), np.uint8)
        # Where the disk is full, or it is not ours to write, it is made anew the next time.
        with suppress(OSError), replacing(path) as unfinished:
            np.savez(unfinished, records=index.records, names=names)
    return index
