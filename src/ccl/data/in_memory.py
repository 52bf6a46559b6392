"""Images of any kind that Python holds, collected one by one until they are a source."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data.arrays import is_ambiguous, rgb_pixels
from ccl.data.decoding import encode_png
from ccl.data.sources import ArraySource, EncodedSource, FileSource, ImageSource
from ccl.errors import UserError, counted

RawImage = NDArray[np.uint8] | bytes | str  # pixels (H, W, 3), an encoded image, the path of a file


class ImageCollector:
    """Images as they come: as they are while all are of one kind, and from then on encoded."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._things: list[RawImage] = []
        self.digests: dict[int, bytes] = {}  # of those that came as pixels, by position
        self._kinds: set[object] = set()
        self._num_ambiguous, self._first_ambiguous = 0, ""

    def add(self, image: object) -> None:
        """Take one more; raises UserError, and says why, for what is not an image."""
        number = len(self.names)
        thing = _taken(image)
        self.names.append(thing if isinstance(thing, str) else f"image {number}")
        if isinstance(thing, np.ndarray):
            self.digests[number] = content_digest(repr(thing.shape).encode(), np.ascontiguousarray(thing).data)
        if isinstance(image, np.ndarray | Tensor) and is_ambiguous(image):
            self._num_ambiguous += 1
            self._first_ambiguous = self._first_ambiguous or f"image {number} of shape {tuple(image.shape)}"
        was_mixed = len(self._kinds) > 1
        self._kinds.add(thing.shape if isinstance(thing, np.ndarray) else type(thing))
        self._things.append(thing)
        if len(self._kinds) > 1:
            start = number if was_mixed else 0
            self._things[start:] = map(_encoded, self._things[start:])

    def source(self) -> ImageSource:
        """All of them, with ids 0 … N-1; only arrays are known to be sound."""
        pixels = [thing for thing in self._things if isinstance(thing, np.ndarray)]
        if pixels:
            return ArraySource(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous())
        paths = [thing for thing in self._things if isinstance(thing, str)]
        if paths:
            return FileSource([os.path.abspath(path) for path in paths])
        files = [thing for thing in self._things if isinstance(thing, bytes)]
        return EncodedSource(files, torch.arange(len(files)))

    def notes(self) -> tuple[str, ...]:
        """Which choices were made for the user, one line each."""
        if not self._num_ambiguous:
            return ()
        return (
            f"{counted(self._num_ambiguous, 'image')} may have the channels first or last, as {self._first_ambiguous}; "
            "arrays are taken as (H, W, C), tensors as (C, H, W)",
        )


def content_digest(*parts: bytes | memoryview) -> bytes:
    """Sixteen bytes, equal for equal content: a file's bytes, or an array's shape and values."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def each(images: Iterable[object]) -> Iterable[object]:
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
    try:
        return Path(thing).read_bytes()
    except OSError as error:
        raise UserError(f"can't read {thing!r}: {error.strerror}") from error
