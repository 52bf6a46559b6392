"""Pictures of letters and signs, drawn from the fonts that matplotlib brings along."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Floats = NDArray[np.float64]

_SANS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold")
_SERIF = ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol")
# The last two of each list are seen in the test part only.
LATIN_FONTS = (*_SANS, *_SERIF, "cmr10", "cmss10", "cmtt10", "cmb10", "DejaVuSansMono-Oblique", "STIXGeneralItalic")
GREEK_FONTS = (*_SANS, *_SERIF, "DejaVuSansMono-Oblique", "STIXGeneralItalic")
SYMBOL_FONTS = ("DejaVuSans", "DejaVuSans-Bold")
NUM_TEST_ONLY_FONTS = 2

_MASTER = 128  # side of the canvas on which each glyph is drawn once, large
_GLYPH = 88  # its longer side there
_SUPERSAMPLING = 3


@lru_cache(maxsize=32)
def _font(name: str) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf", 160)


@lru_cache(maxsize=1024)
def _master(font: str, character: str, is_outlined: bool) -> Image.Image:
    """The glyph in white on black, centred, its longer side always `_GLYPH`."""
    canvas = Image.new("L", (400, 400))
    draw = ImageDraw.Draw(canvas)
    # An outline is the stroke around a glyph whose inside is painted over.
    stroke = 9 if is_outlined else 0
    fill = 0 if is_outlined else 255
    draw.text((200, 200), character, font=_font(font), anchor="mm", fill=fill, stroke_width=stroke, stroke_fill=255)
    glyph = canvas.crop(canvas.getbbox())
    scale = _GLYPH / max(glyph.size)
    size = (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale)))
    master = Image.new("L", (_MASTER, _MASTER))
    left, top = (_MASTER - size[0]) // 2, (_MASTER - size[1]) // 2
    master.paste(glyph.resize(size, Image.Resampling.BILINEAR), (left, top))
    return master


def masks(
    characters: str,
    fonts: tuple[str, ...],
    num_each: int,
    size: int,
    rng: np.random.Generator,
    *,
    is_outlined: bool = False,
) -> Floats:
    """Ink in [0, 1] of each character `num_each` times: random font, position, height and tilt, (C·num_each, H, W)."""
    rows = []
    for character in characters:
        for _ in range(num_each):
            font = fonts[int(rng.integers(len(fonts)))]
            height, tilt, across, down = rng.uniform((0.60, -16, -1, -1), (0.90, 16, 1, 1))
            # The whole glyph stays inside: what is left of the side, halved, bounds the shift.
            room = (1 - height) / 2
            placed = _placed(_master(font, character, is_outlined), size, height, tilt, across * room, down * room)
            rows.append(np.asarray(placed, dtype=np.float64) / 255)
    return np.stack(rows)


def _placed(glyph: Image.Image, size: int, height: float, tilt: float, across: float, down: float) -> Image.Image:
    """The master glyph turned by `tilt` degrees, `height` of the side high, shifted by parts of the side."""
    side = size * _SUPERSAMPLING
    scale = _GLYPH / (height * side)  # pixels of the master per pixel of the canvas
    cosine, sine = scale * math.cos(math.radians(tilt)), scale * math.sin(math.radians(tilt))
    x, y = side / 2 + across * side, side / 2 + down * side
    centre = _MASTER / 2
    # PIL asks for the inverse map: from the canvas back to the master.
    inverse = (cosine, sine, centre - cosine * x - sine * y, -sine, cosine, centre + sine * x - cosine * y)
    large = glyph.transform((side, side), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)
    return large.reduce(_SUPERSAMPLING)
