"""WebDataset shards: tars in which the files of one image follow each other and share a key.

"n01/0017.jpg" and "n01/0017.cls" have the key "n01/0017": all before the first dot of the file's name. The image is the
first file of a key that ends in an image's suffix, a plain one (".jpg") before a compound one (".mask.png"). Its label
is the text of its .cls, else "label", "cls" or "class" of its .json.
"""

import json
import os
import weakref
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccl.data.archives import COMPRESSIONS, DAMAGE, tar_members
from ccl.data.decoding import is_image_name
from ccl.data.folders import is_hidden
from ccl.data.object_store import is_remote, read_range
from ccl.data.shard_index import RECORD, Reader, Shard, ShardIndex
from ccl.errors import UserError

BLOCK = 512  # bytes; everything in a tar begins at a multiple of it
_MAX_BYTES = (1 << 32) - 1  # that an index can hold; no image may have so many
_MAX_LABEL_BYTES = 1 << 20
LABEL_FIELDS = ("label", "cls", "class")


class _File(NamedTuple):
    """A file of a tar, with its content where it may hold a label."""

    key: str
    extension: str  # "jpg", "mask.png"; lower case
    offset: int
    num_bytes: int
    content: bytes


def index_tar(shard: Shard) -> ShardIndex:
    """The images of a tar in its order; refuses one that is cut off, damaged, compressed or not a tar."""
    records, keys = [], []
    classes: dict[str, int] = {}
    num_without, num_further = 0, 0
    try:
        for key, group in groupby(_files(shard), key=lambda file: file.key):
            files = list(group)
            images = [file for file in files if is_image_name(f"image.{file.extension}")]
            images.sort(key=lambda file: "." in file.extension)  # stable: of each kind the first stays first
            if not images:
                num_without += 1
                continue
            num_further += len(images) - 1
            label = _label(files)
            number = -1 if label is None else classes.setdefault(label, len(classes))
            records.append((images[0].offset // BLOCK, min(images[0].num_bytes, _MAX_BYTES), number))
            keys.append(key)
    except UserError:
        raise
    except DAMAGE as error:
        why = " ".join(str(error).split())[:160]
        raise UserError(f"shard {shard.path!r} is cut off, damaged or not a tar ({why}); fetch it again") from error
    notes = [f"{num_without} keys without an image are skipped"] if num_without else []
    notes += [f"{num_further} further images of a key are skipped"] if num_further else []
    return ShardIndex(np.array(records, RECORD), list(classes), keys, notes)


def _files(shard: Shard) -> Iterator[_File]:
    """The files of a tar that are not hidden."""
    with shard.open() as file:
        start = file.read(6)
        if any(start.startswith(magic) for magic in COMPRESSIONS):
            raise UserError(
                f"shard {shard.path!r} is compressed, and shards are read by position; decompress it, "
                "or give it as an archive, without shards:"
            )
        file.seek(0)
        for member in tar_members(Path(shard.path), file):
            folder, name = os.path.split(member.name)
            if member.is_plain and not any(is_hidden(part) for part in member.name.split("/")):
                stem, _, extension = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                content = b""
                if name.lower().endswith((".cls", ".json")) and member.num_bytes <= _MAX_LABEL_BYTES:
                    file.seek(member.offset)  # tarfile seeks before it reads on; its own way to a content is slower
                    content = file.read(member.num_bytes)
                yield _File(key, extension.lower(), member.offset, member.num_bytes, content)
        # Without the zeros at the end a tar that is cut off between two files would pass.
        file.seek(max(shard.num_bytes - BLOCK, 0))
        if any(file.read(BLOCK)):
            raise EOFError("the mark at its end is missing")


def _label(files: list[_File]) -> str | None:
    of_extension = {file.extension: file.content for file in reversed(files)}
    if text := of_extension.get("cls", b"").decode("utf-8", "replace").strip():
        return text
    try:
        about: Any = json.loads(of_extension.get("json", b"null"))
    except (ValueError, RecursionError):
        return None
    values = (about.get(field) for field in LABEL_FIELDS) if isinstance(about, dict) else ()
    return next((str(value) for value in values if isinstance(value, str | int)), None)


def open_tar(shard: Shard) -> Reader:
    """Reads by position: forked processes and threads that share the handle do not get in each other's way."""
    shard.check()
    handle = -1 if is_remote(shard.path) else os.open(shard.path, os.O_RDONLY)

    def read(place: int, num_bytes: int) -> bytes:
        start, content = place * BLOCK, b""
        if num_bytes:
            content = read_range(shard.path, start, num_bytes) if handle < 0 else os.pread(handle, num_bytes, start)
        if len(content) != num_bytes:
            raise ValueError("the shard ends in the middle of this image")
        return content

    if handle >= 0:
        weakref.finalize(read, os.close, handle)
    return read
