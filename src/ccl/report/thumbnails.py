"""Images small enough to stand in a page themselves."""

import base64
import io
from dataclasses import dataclass

from PIL import Image

from ccl.data import BadImageError
from ccl.data.decoding import decode

SIDE = 96  # longest side of an embedded image
_MOST_BYTES = 4000  # of an image taken as it is, any of 32×32 is below; larger files would make the page heavy
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


@dataclass(frozen=True)
class Thumbnail:
    """An image as a page shows it."""

    source: str  # a data URI
    is_small: bool


def thumbnail(content: bytes, side: int = SIDE) -> Thumbnail | None:
    """A file's image, as it is where it is small, else as a JPEG of at most this side; None for what is no image."""
    picture = small_picture(content, side)
    if picture is None:
        return None
    with Image.open(io.BytesIO(content)) as header:  # of one of the formats that `decode` allows
        mime, longest = _MIME.get(header.format or ""), max(header.size)
    if mime is None or longest > side or len(content) > _MOST_BYTES:
        file = io.BytesIO()
        picture.save(file, format="JPEG", quality=85)
        mime, content = "image/jpeg", file.getvalue()
    return Thumbnail(f"data:{mime};base64,{base64.b64encode(content).decode()}", longest <= _PIXELATED)


def small_picture(content: bytes, side: int = SIDE) -> Image.Image | None:
    """A file's image as upright RGB of at most this side; None for what is no image."""
    try:
        picture = decode(io.BytesIO(content), lambda width, height: _reduction(max(width, height), side))
    except BadImageError:
        return None
    picture.thumbnail((side, side))
    return picture


def _reduction(longest: int, side: int) -> int:
    """At least twice the side is left, for a smooth last step."""
    return next((divisor for divisor in (8, 4, 2) if longest >= 2 * divisor * side), 1)
