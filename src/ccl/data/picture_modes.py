"""From each of Pillow's modes to RGB of 8 bits; depth and channels that could only be guessed are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

_STRIP = 1 << 17  # pixels that are converted at one time: a whole copy would double the memory
_INTEGERS = ("I", "I;16", "I;16B", "I;16L")
_WITH_ALPHA = ("RGBA", "LA", "PA")
_FULL = 1 << 15  # what 16 bits a channel must reach: cameras and scanners put 10 to 14 bits into files of 16
SLACK = 1e-4  # by how much rounding may carry a float beyond 0 or 1
_TO_BYTES = "convert all such files to 8 bits a channel first, all in the same way"


class BadImageError(ValueError):
    """A file that is not a usable image; the message says which, where that is known, and why."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.reason = reason
        self.path = path


def refuse_samples(image: Image.Image) -> None:
    """Refuse a TIFF, of which only the header is read, whose samples Pillow would drop or take for something else."""
    if image.format != "TIFF":
        return
    tags = image.tag_v2  # type: ignore[attr-defined]
    count, kind, extra = int(tags.get(277, 1)), tags.get(262), tags.get(338, ())
    own = {2: 3, 5: 4, 6: 3, 8: 3}.get(kind, 1)  # RGB, CMYK, YCbCr, LAB; grey and palettes have one
    if count > own + (tuple(extra)[:1] in ((1,), (2,))):
        raise BadImageError(f"{count} samples a pixel, and the last is not marked as alpha: give RGB or grey alone")
    if kind == 0 and image.mode not in ("1", "L"):
        raise BadImageError(f"white is 0, in {_depth(image)}: {_TO_BYTES}")
    if image.mode == "L" and 2 in tags.get(339, ()):
        raise BadImageError(f"signed integers of 8 bits: {_TO_BYTES}")


def has_deep_samples(image: Image.Image) -> bool:
    """Whether a picture, of which only the header is read, will lose the lower 8 of 16 bits when it is loaded."""
    tiles = getattr(image, "tile", ()) if image.format in ("PNG", "TIFF") else ()
    return image.mode not in _INTEGERS and any(";16" in str(tile[3]) for tile in tiles)


def to_rgb(image: Image.Image, has_deep_samples: bool = False, is_kept: bool = False) -> Image.Image:
    """A loaded picture as RGB, itself where it is that: alpha laid on white, of 16 bits a channel the upper 8.

    `is_kept`: it was learned by a version that refused no depth, and looks as it did then.
    """
    scale = 255.0
    if not is_kept:
        _refuse_depth(image, has_deep_samples)
    elif image.mode == "F" and (largest := float(cast(tuple[float, float], image.getextrema())[1])) > 1:
        scale = 1.0 if largest <= 255 else 1 / 256
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    whole = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        whole.paste(_strip_to_rgb(strip, scale), (0, top))
    return whole


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _strip_to_rgb(image: Image.Image, scale: float) -> Image.Image:
    if image.mode in _INTEGERS:
        image = image.convert("F").point(lambda value: value / 256).convert("L")
    elif image.mode == "F":
        image = image.point(lambda value: value * scale + 0.0).convert("L")
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _depth(image: Image.Image) -> str:
    return "floats" if image.mode == "F" else "32 bits a channel" if image.mode == "I" else "16 bits a channel"


def _refuse_depth(image: Image.Image, has_deep_samples: bool) -> None:
    """Values whose range is unknown: one that is guessed picture by picture would make one set of many scales."""
    if image.mode == "F" or image.mode in _INTEGERS:
        low, high = 0.0, 0.0
        for _, strip in _strips(image):
            values = np.asarray(strip)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            if not np.isfinite(values).all():
                raise BadImageError("floats, and some are not finite: replace NaN and infinity")
        if image.mode == "F":
            if low < -SLACK or high > 1 + SLACK:
                raise BadImageError(f"floats from {low:g} to {high:g}, not within [0, 1]: {_TO_BYTES}")
        elif low < 0 or high >= 1 << 16:
            raise BadImageError(f"integers from {low:,.0f} to {high:,.0f}: {_TO_BYTES}")
        elif 0 < high < _FULL and image.format != "PPM":  # whose header says its range
            by = max(1, 1 << (int(high).bit_length() - 8)) if high >= 256 else 1
            raise BadImageError(f"16 bits a channel, largest value {high:,.0f}: {_TO_BYTES} (e.g. divide by {by})")
    elif has_deep_samples and image.mode in ("RGB", "RGBA"):
        upper = max(int(np.asarray(strip)[:, :, :3].max()) for _, strip in _strips(image))
        if upper < _FULL >> 8:
            most = (upper + 1) << 8
            raise BadImageError(
                f"16 bits a channel, all values below {most:,}: {_TO_BYTES} (e.g. divide by {most >> 8})"
            )
