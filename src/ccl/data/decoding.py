"""From a file's bytes to an RGB picture, and back without loss."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ccl.errors import UserError, how_to_install

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


class BadImageError(ValueError):
    """A file that is not a usable image; the message says which, where that is known, and why."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.reason = reason
        self.path = path


def is_image_name(name: str) -> bool:
    """Whether a file is to be taken for an image, as its suffix says."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def decode(file: BinaryIO, reduction: Reduction | None = None) -> Image.Image:
    """The picture as upright RGB: the first frame, alpha laid on white, EXIF rotation applied.

    A JPEG is decoded at a part of its size where `reduction` says so: pixel p of a line then stands for the pixels
    from divisor · p on, and the last may stand for fewer. Other formats come in full.
    """
    with open_image(file) as image:
        return upright_rgb(image, reduction)


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


def upright_rgb(image: Image.Image, reduction: Reduction | None = None) -> Image.Image:
    """An opened picture, as `decode` returns it; any error is possible where its file is broken."""
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError(f"{image.width}×{image.height} pixels exceed the limit of {MAX_PIXELS:,}")
    if reduction is not None:
        _reduce(image, reduction)
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "I;16", "I;16B", "I;16L"):  # 16 bits a channel: keep the upper 8, not the lower
        image = image.convert("F").point(lambda value: value / 256).convert("L")
    elif image.mode == "F":  # floats carry no range of their own: up to 1 shares, up to 255 bytes, beyond 16 bits
        _, largest = cast(tuple[float, float], image.getextrema())
        scale = 255.0 if largest <= 1 else 1.0 if largest <= 255 else 1 / 256
        image = image.point(lambda value: value * scale + 0.0).convert("L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


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


def _reduce(image: Image.Image, reduction: Reduction) -> None:
    """Have a JPEG decoded smaller: most of a decoder's work is per pixel that it puts out."""
    if image.format != "JPEG":
        return
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    width, height = image.size
    divisor = reduction(height, width) if orientation >= 5 else reduction(width, height)
    if orientation != 1 and (width % divisor or height % divisor):
        return  # turned, a last pixel that stands for fewer would come first, and shift all others
    if divisor > 1:
        image.draft(None, (max(width // divisor, 1), max(height // divisor, 1)))  # the mode stays


def _reason(error: Exception) -> str:
    """Why a file can't be decoded, in one line and without its name, which Pillow and Python put in some messages."""
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of the formats {', '.join(ALLOWED_FORMATS)}, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


def square_picture(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """The centre square of a picture, anti-aliased, (side, side, 3)."""
    return np.array(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR), dtype=np.uint8)


def encode_png(image: Image.Image) -> bytes:
    """The picture as PNG: lossless."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
