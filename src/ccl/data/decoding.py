"""From a file's bytes to an RGB picture, and back without loss."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ccl.data.decode_memory import DIVISORS, JPEGS, MOST_BYTES, ROOM, bytes_to_decode, orientation
from ccl.data.picture_modes import BadImageError as BadImageError
from ccl.data.picture_modes import has_deep_samples, refuse_samples, to_rgb
from ccl.errors import UserError, how_to_install

# What Pillow says of a damaged file beside its errors: at the terminal it would be a line of its source.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())

# Everything else that Pillow can open (vector formats, containers, network streams) is refused.
ALLOWED_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".heic", ".heif"}
)
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
MAX_PIXELS = 64_000_000  # Pillow itself only warns at 89 million and decodes up to twice that.
MAX_BYTES = 1 << 30  # of a file: what that many pixels take at 16 bytes each, uncompressed

# From a picture's upright (W, H), as its header has them, to the divisor of its sides (1, 2, 4, 8) that is enough.
Reduction = Callable[[int, int], int]


def is_image_name(name: str) -> bool:
    """Whether a file is to be taken for an image, as its suffix says."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def decode(file: BinaryIO, reduction: Reduction | None = None, is_kept: bool = False) -> Image.Image:
    """The picture as upright RGB: the first frame, alpha laid on white, EXIF rotation applied.

    A JPEG is decoded at a part of its size where `reduction` says so, or where it would take too much memory: pixel p
    of a line then stands for the pixels from divisor · p on, and the last may stand for fewer. Others come in full.
    """
    with decoded(file, reduction, is_kept=is_kept) as picture:
        return picture


@contextmanager
def decoded(
    file: BinaryIO, reduction: Reduction | None = None, turn: int = 0, is_kept: bool = False
) -> Iterator[Image.Image]:
    """As `decode`; threads that decode at one time share the memory for it until they leave. `turn`: 0 if not known."""
    with open_image(file) as image:
        if not is_kept:
            refuse_samples(image)
        has_depth, expected = has_deep_samples(image), turn or orientation(image, is_loaded=False)
        with ROOM.held(_reduce(image, reduction, expected)):
            image.load()
            turn = orientation(image)
            if turn in (1, expected):
                picture = to_rgb(image, has_depth, is_kept)
                if picture is not image:
                    image.close()  # its pixels are let go
                yield _turned(picture, turn)
                return
    del image  # its pixels are let go
    with decoded(file, reduction, turn, is_kept) as picture:  # again, with room to turn it
        yield picture


# Of EXIF's numbers from 2 on, as ImageOps.exif_transpose has them.
_TURNS = ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"]


def _turned(picture: Image.Image, turn: int) -> Image.Image:
    return picture if turn == 1 else picture.transpose(Image.Transpose[_TURNS[turn - 2]])


@contextmanager
def open_image(file: BinaryIO) -> Iterator[Image.Image]:
    """A picture of which only the header is read; any error while it is open becomes a BadImageError."""
    with errors_as_bad_image():
        refuse_length(file.seek(0, os.SEEK_END))
        with _opened(file) as image:
            yield image


def _opened(file: BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=ALLOWED_FORMATS)  # rewinds an open file
    except UnidentifiedImageError:
        file.seek(0)
        if not is_heif(file.read(_HEADER)):
            raise
    if not can_read_heif():
        raise BadImageError(f"a HEIC photograph, which the extra heic reads; {how_to_install('heic')}")
    return Image.open(file, formats=("HEIF",))


_HEADER = 12  # bytes that tell HEIF from other files


def is_heif(content: bytes) -> bool:
    """Whether a file is a photograph as phones save it (HEIC), by its first bytes."""
    return content[4:8] == b"ftyp" and content[8:_HEADER] in _HEIF_BRANDS


@cache
def can_read_heif() -> bool:
    """Whether Pillow has a reader for HEIC, which a package of its own adds."""
    try:
        import pillow_heif

        pillow_heif.register_heif_opener()
    except Exception:  # a broken installation raises anything
        return False
    return True


def refuse_length(num_bytes: int) -> None:
    """Raises BadImageError where a file is too short or too long to be an image."""
    if num_bytes == 0:
        raise BadImageError("the file is empty")
    if num_bytes > MAX_BYTES:
        raise BadImageError(f"{num_bytes:,} bytes exceed the limit of {MAX_BYTES:,}")


def upright_rgb(image: Image.Image) -> Image.Image:
    """A picture that its user opened or made, as `decode` returns those of files; any error is possible."""
    _refuse_pixels(image)
    refuse_samples(image)
    has_depth = has_deep_samples(image)
    image.load()
    return _turned(to_rgb(image, has_depth), orientation(image))


@contextmanager
def errors_as_bad_image() -> Iterator[None]:
    """Any error becomes a BadImageError.

    Not a UserError: a shard that can't be opened, or a store that refuses, says nothing about an image.
    """
    try:
        yield
    except (UserError, BadImageError):
        raise
    except Exception as error:  # Pillow raises many kinds for broken files
        raise BadImageError(_reason(error)) from error


def _refuse_pixels(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError(f"{image.width}×{image.height} pixels exceed the limit of {MAX_PIXELS:,}")


def _reduce(image: Image.Image, reduction: Reduction | None, turn: int) -> int:
    """Have a JPEG decoded smaller: its work is per pixel that comes out. Returns the bytes it takes."""
    _refuse_pixels(image)
    width, height = image.size
    divisor = 1
    if reduction is not None and image.format == "JPEG":
        divisor = reduction(height, width) if turn >= 5 else reduction(width, height)
        if turn != 1 and (width % divisor or height % divisor):
            divisor = 1  # turned, a last pixel that stands for fewer would come first, and shift all others
    divisors = [by for by in DIVISORS if by >= divisor] if image.format in JPEGS else [1]
    needed = {by: bytes_to_decode(image, turn, by) for by in divisors}
    divisor = next((by for by in divisors if needed[by] <= MOST_BYTES), 0)
    if divisor == 0:
        raise BadImageError(
            f"{width}×{height} pixels of {image.format} ({image.mode}) would take {max(needed.values()):,} bytes to "
            f"decode, and {MOST_BYTES:,} are the limit: make it smaller, or save it as JPEG"
        )
    if divisor > 1:
        image.draft(None, (max(width // divisor, 1), max(height // divisor, 1)))  # the mode stays
    return needed[divisor]


def _reason(error: Exception) -> str:
    """Why a file can't be decoded, in one line and without its name, which Pillow and Python put in some messages."""
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of the formats {', '.join(ALLOWED_FORMATS)}, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def square_picture(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """The centre square of a picture, anti-aliased, (side, side, 3)."""
    return np.array(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR), dtype=np.uint8)


def encode_png(image: Image.Image) -> bytes:
    """The picture as PNG: lossless."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
