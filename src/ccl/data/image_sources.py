"""Sources of single images: a base class, and its forms for arrays, files, bytes, squares and joined parts."""

import hashlib
import io
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ccl.data.decoding import (
    BadImageError,
    Reduction,
    decode,
    encode_png,
    errors_as_bad_image,
    is_heif,
    open_image,
    refuse_length,
    square_picture,
)


class ImageSource(ABC):
    """Images by position 0 … N-1, each with an id that stays its own over the whole stream.

    A source whose images all have one size and lie in memory says so by `image_size` and is read in batches;
    any other is decoded image by image, by loader workers.
    """

    ids: Tensor  # (N,) int64, distinct
    is_kept = False  # whether the images were looked into, by this version or one before, and are taken as they are

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(H, W) where `read` works, None where only `picture` does."""
        return None

    def read(self, positions: Tensor) -> Tensor:
        """uint8 (N, 3, H, W); only where `image_size` is not None."""
        raise TypeError("these images have no common size; use picture()")

    def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
        """One decoded RGB image of whatever size it has, or reduced as asked where its format allows it."""
        content = self.encoded(position)
        with self.naming_errors(position):  # also of a file that was sound when the dataset was loaded
            return decode(io.BytesIO(content), reduction, self.is_kept)

    @contextmanager
    def naming_errors(self, position: int) -> Iterator[None]:
        """Any error becomes a BadImageError that names the image."""
        try:
            with errors_as_bad_image():
                yield
        except BadImageError as error:  # only now is the name needed
            raise BadImageError(error.reason, Path(self.name(position))) from error

    @abstractmethod
    def encoded(self, position: int) -> bytes:
        """The image as a file's bytes, lossless: what the rehearsal memory stores."""

    def shorter_side(self, position: int) -> int:
        """In pixels, as the header says."""
        with open_image(io.BytesIO(self.encoded(position))) as image:
            return min(image.size)

    @abstractmethod
    def subset(self, positions: Tensor) -> "ImageSource":
        """The images at these positions, in this order, with their ids."""

    def name(self, position: int) -> str:
        """An image's name in messages and tables."""
        return f"image {position}"

    def content_parts(self) -> Iterator[bytes | memoryview]:
        """The parts that a fingerprint hashes: the images' bytes, or, where that is quicker, names and sizes."""
        for position in range(len(self)):
            yield self.encoded(position)

    def change(self) -> tuple[bytes, int]:
        """A digest that changes with any of the files, and their newest time of change (ns); (b"", 0) without files."""
        return b"", 0

    def with_ids(self, ids: Tensor) -> "ImageSource":
        """The same images with other ids (N,)."""
        other = copy(self)
        other.ids = ids
        return other


class ArraySource(ImageSource):
    """Images of one size in one uint8 tensor, or some rows of it: subsets share it."""

    def __init__(self, images: Tensor, ids: Tensor | None = None, rows: Tensor | None = None) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be uint8 (N, 3, H, W), got {images.dtype} {tuple(images.shape)}")
        self._stored = images  # (all, 3, H, W)
        self._rows = rows  # (N,): the row of each position; None where position n is row n
        num_images = len(images if rows is None else rows)
        self.ids = torch.arange(num_images) if ids is None else ids  # (N,)

    @property
    def images(self) -> Tensor:
        """(N, 3, H, W); copied where this is a subset."""
        return self._stored if self._rows is None else self.read(torch.arange(len(self)))

    @property
    def image_size(self) -> tuple[int, int] | None:
        return int(self._stored.shape[2]), int(self._stored.shape[3])

    def read(self, positions: Tensor) -> Tensor:
        rows = self._rows_at(positions)
        return self._stored.index_select(0, rows.to(self._stored.device))  # several times as fast as [rows]

    def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
        pixels = self.read(torch.tensor([position]))[0].cpu()  # (3, H, W)
        return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))

    def encoded(self, position: int) -> bytes:
        return encode_png(self.picture(position))

    def content_parts(self) -> Iterator[bytes | memoryview]:
        yield repr(tuple(self.images.shape)).encode()
        yield self.images.contiguous().numpy().data.cast("B")

    def subset(self, positions: Tensor) -> ImageSource:
        # Shared, so that a whole set, its steps and their probes are in memory once.
        return ArraySource(self._stored, self.ids[positions], self._rows_at(positions))

    def with_ids(self, ids: Tensor) -> ImageSource:
        # A copy of a subset's rows: the others are let go.
        return ArraySource(self.images, ids)

    def _rows_at(self, positions: Tensor) -> Tensor:
        return positions if self._rows is None else self._rows[positions]

    def __reduce__(self) -> tuple[type["ArraySource"], tuple[Tensor, Tensor]]:
        # What is sent to a worker does not carry the whole with it.
        return ArraySource, (self.images, self.ids)


class FileSource(ImageSource):
    """Images in files, decoded when asked for."""

    def __init__(self, paths: Sequence[Path | str], ids: Tensor | None = None) -> None:
        self.names = [os.fspath(path) for path in paths]  # strings: a million Path objects are half a gigabyte
        self.ids = torch.arange(len(self.names)) if ids is None else ids  # (N,)

    def encoded(self, position: int) -> bytes:
        with self.naming_errors(position), Path(self.names[position]).open("rb") as file:
            refuse_length(os.fstat(file.fileno()).st_size)
            return file.read()

    def shorter_side(self, position: int) -> int:
        with self.naming_errors(position), Path(self.names[position]).open("rb") as file, open_image(file) as image:
            return min(image.size)  # nothing is read beyond the header

    def name(self, position: int) -> str:
        return self.names[position]

    def content_parts(self) -> Iterator[bytes | memoryview]:
        for name in self.names:
            parent, file = os.path.split(name)
            size = os.stat(name).st_size
            yield f"{os.path.basename(parent)}/{file} {size}".encode(errors="surrogateescape")

    def change(self) -> tuple[bytes, int]:
        state, newest = hashlib.sha256(), 0
        try:
            for name in self.names:
                about = os.stat(name)
                newest = max(newest, about.st_mtime_ns)
                state.update(os.fsencode(f"{os.path.abspath(name)}\0{about.st_size} {about.st_mtime_ns}\0"))
        except OSError:
            return b"", 0
        return state.digest(), newest

    def subset(self, positions: Tensor) -> ImageSource:
        return FileSource([self.names[position] for position in positions.tolist()], self.ids[positions])


class EncodedSource(ImageSource):
    """Images as encoded bytes held in memory: the form in which the past is kept."""

    is_kept = True

    def __init__(self, files: Sequence[bytes], ids: Tensor | None = None) -> None:
        self.files = list(files)
        self.ids = torch.arange(len(self.files)) if ids is None else ids  # (N,)

    def encoded(self, position: int) -> bytes:
        return self.files[position]

    def subset(self, positions: Tensor) -> ImageSource:
        return EncodedSource([self.files[position] for position in positions.tolist()], self.ids[positions])

    def decoded(self, size: tuple[int, int], is_squared: bool = False) -> ImageSource:
        """All images in one tensor, squared to this size (H, W) first if asked; itself where one has another size."""
        pictures = map(self.picture, range(len(self)))
        pixels = [square_picture(picture, size[0]) if is_squared else np.asarray(picture) for picture in pictures]
        if not pixels or any(image.shape[:2] != size for image in pixels):
            return self
        return ArraySource(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), self.ids)


class Spool:
    """The files of images, one after the other in an unnamed file of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- open as long as the source
        self._ends = [0]

    def add(self, files: Sequence[bytes]) -> None:
        """Append these; b"" stands for one that is not kept."""
        for content in files:
            self._file.write(content)
            self._ends.append(self._ends[-1] + len(content))

    def read(self, number: int) -> bytes:
        """The file that was appended as this one, counted from 0."""
        self._file.seek(self._ends[number])
        return self._file.read(self._ends[number + 1] - self._ends[number])


class SquaredSource(ArraySource):
    """Images brought to one square size, beside the files they came from.

    What is kept of an image is its original file or a PNG of its square, whichever is shorter. Both give the same
    pixels: `EncodedSource.decoded` squares originals as they were squared when they were learned.
    """

    def __init__(self, images: Tensor, files: Spool, ids: Tensor | None = None, rows: Tensor | None = None) -> None:
        super().__init__(images, ids, rows)
        self._files = files  # one for each row
        self._encoded: dict[int, bytes] = {}  # a budget measures what is then kept

    def encoded(self, position: int) -> bytes:
        if position not in self._encoded:
            square, original = super().encoded(position), self._files.read(int(self._rows_at(torch.tensor(position))))
            # HEIC needs a package that may be missing where the folder is opened next.
            is_kept = 0 < len(original) <= len(square) and not is_heif(original)
            self._encoded[position] = original if is_kept else square
        return self._encoded[position]

    def subset(self, positions: Tensor) -> ImageSource:
        return SquaredSource(self._stored, self._files, self.ids[positions], self._rows_at(positions))

    def with_ids(self, ids: Tensor) -> ImageSource:
        return SquaredSource(self._stored, self._files, ids, self._rows)


class JoinedSource(ImageSource):
    """Several sources one after the other: D_t followed by the rehearsal memory. There may be none."""

    def __init__(self, parts: Sequence[ImageSource], order: Tensor | None = None) -> None:
        self.parts = list(parts)
        self._order = order  # (N,): where each position is in all parts one after the other; None: in that order
        no_ids = torch.zeros(0, dtype=torch.int64)  # cat refuses an empty list
        ids = torch.cat([no_ids, *(part.ids for part in self.parts)])
        self.ids = ids if order is None else ids[order]  # (N,)
        self._starts = np.cumsum([0] + [len(part) for part in self.parts])

    @property
    def image_size(self) -> tuple[int, int] | None:
        sizes = {part.image_size for part in self.parts if len(part)}
        return sizes.pop() if len(sizes) == 1 else None

    def _within(self, positions: Tensor) -> Iterator[tuple[ImageSource, Tensor, Tensor]]:
        """Each part of which something is wanted, which of the positions (n,) are in it, and where in it."""
        positions = positions if self._order is None else self._order[positions]
        for start, part in zip(self._starts.tolist(), self.parts, strict=False):
            here = torch.nonzero((positions >= start) & (positions < start + len(part))).flatten()
            if len(here):
                yield part, here, positions[here] - start

    def read(self, positions: Tensor) -> Tensor:
        height, width = self.image_size or (0, 0)
        images = torch.empty(len(positions), 3, height, width, dtype=torch.uint8)
        for part, here, local in self._within(positions):
            images[here] = part.read(local).to(images.device)
        return images

    def _locate(self, position: int) -> tuple[ImageSource, int]:
        position = position if self._order is None else int(self._order[position])
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self.parts[number], position - int(self._starts[number])

    def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
        part, local = self._locate(position)
        return part.picture(local, reduction)

    def encoded(self, position: int) -> bytes:
        part, local = self._locate(position)
        return part.encoded(local)

    def shorter_side(self, position: int) -> int:
        part, local = self._locate(position)
        return part.shorter_side(local)

    def name(self, position: int) -> str:
        part, local = self._locate(position)
        return part.name(local)

    def content_parts(self) -> Iterator[bytes | memoryview]:
        for part in self.parts:
            yield from part.content_parts()
        if self._order is not None:
            yield self._order.numpy().tobytes()

    def subset(self, positions: Tensor) -> ImageSource:
        # Of each part only what is wanted, so that a batch that is sent to a worker does not carry the whole with it.
        wanted = list(self._within(positions))
        places = torch.cat([torch.zeros(0, dtype=torch.int64), *(here for _, here, _ in wanted)])  # (N,)
        joined = JoinedSource([part.subset(local) for part, _, local in wanted], torch.argsort(places))
        joined.ids = self.ids[positions]  # a joined source may number its images anew
        return joined


def chain(sources: Sequence[ImageSource]) -> ImageSource:
    """Sources one after the other with their ids; arrays of one size become one array, which is read faster."""
    parts = [source for source in sources if len(source)] or sources[:1]  # an empty one still knows its size
    arrays = [source for source in parts if isinstance(source, ArraySource)]
    if len(arrays) == len(parts) and len({source.image_size for source in arrays}) == 1:
        if len(arrays) == 1:
            return arrays[0]
        return ArraySource(
            torch.cat([source.images for source in arrays]), torch.cat([source.ids for source in arrays])
        )
    return JoinedSource(parts)
