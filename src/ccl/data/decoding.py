"""From a file's bytes to an RGB picture, and back without loss."""

import io
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps

# Everything else that Pillow can open (vector formats, containers, network streams) is refused.
ALLOWED_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
MAX_PIXELS = 64_000_000  # Pillow itself only warns at 89 million and decodes up to twice that.


class BadImageError(ValueError):
    """A file that is not a usable image; the message says why."""


def decode(file: Path | BinaryIO) -> Image.Image:
    """The picture as upright RGB: the first frame, alpha laid on white, EXIF rotation applied."""
    try:
        with Image.open(file, formats=ALLOWED_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BadImageError(f"{image.width}×{image.height} pixels exceed the limit of {MAX_PIXELS:,}")
            upright = ImageOps.exif_transpose(image)
            return _to_rgb(upright)
    except BadImageError:
        raise
    except Exception as error:  # Pillow raises many kinds for broken files
        raise BadImageError(f"{type(error).__name__}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in (
        "I",
        "I;16",
        "I;16B",
        "I;16L",
        "F",
    ):  # 16 bits a channel: keep the upper 8, not the lower
        image = image.convert("F").point(lambda value: value / 256).convert("L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def encode_png(image: Image.Image) -> bytes:
    """The picture as PNG: lossless."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
