"""Five small sets that need no download, drawn from a seed; they differ in kind, so that a stream of them drifts.

Handwritten digits (real images, from scikit-learn), light capitals on dark colours, dark Greek letters on pale
stripes, outlined symbols in noise, and textures. Colours are drawn apart from the class.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ccl.data.dataset import Dataset
from ccl.data.image_sources import ArraySource
from ccl.seeding import hashed, permutation

Floats = NDArray[np.float64]
Rng = np.random.Generator
Draw = Callable[[int, int, Rng], Floats]  # number and side to (N, side, side) in [0, 1]

NATIVE_SIZE, MIN_SIZE, MAX_SIZE = 24, 16, 32
NUM_TRAIN, NUM_TEST = 100, 40  # per class
_KEPT = 16  # parts of sets, of up to 3 MB each, that a process draws once: a short run learns faster than it draws

CAPITALS = "ABEGHKMRSX"
_GREEK_NAMES = "alpha beta gamma delta theta lambda xi pi psi omega"
_SYMBOL_NAMES = "spade heart star arrow knight infinity sum note umbrella telephone"
GREEK = dict(zip("αβγδθλξπψω", _GREEK_NAMES.split(), strict=True))
SYMBOLS = dict(zip("♠♥★➔♞∞∑♪☂☎", _SYMBOL_NAMES.split(), strict=True))

_SANS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold")
_SERIF = ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol")
# The last two of each list are seen in the test part only.
_LATIN_FONTS = (*_SANS, *_SERIF, "cmr10", "cmss10", "cmtt10", "cmb10", "DejaVuSansMono-Oblique", "STIXGeneralItalic")
_GREEK_FONTS = (*_SANS, *_SERIF, "DejaVuSansMono-Oblique", "STIXGeneralItalic")
_SYMBOL_FONTS = ("DejaVuSans", "DejaVuSans-Bold")
_NUM_TEST_ONLY_FONTS = 2

_MASTER = 128  # side of the canvas on which each glyph is drawn once, large
_GLYPH = 88  # its longer side there
_GLYPH_SUPERSAMPLING, _TEXTURE_SUPERSAMPLING = 3, 2


def generate(domain: str, seed: int, size: int = NATIVE_SIZE) -> Dataset:
    """One of the five domains: ten classes, 100 training and 40 test images of each, in an order without classes."""
    if domain == "digits":
        train, test = _digits(seed, size)
    else:
        train = _drawn(domain, NUM_TRAIN, size, seed, is_test=False)
        test = _drawn(domain, NUM_TEST, size, seed, is_test=True)
    train_images, train_labels = _shuffled(train, seed, domain, "train")
    test_images, test_labels = _shuffled(test, seed, domain, "test")
    glyphs = {"digits": "0123456789", "capitals": CAPITALS, "greek": GREEK.values(), "symbols": SYMBOLS.values()}
    names = tuple(glyphs.get(domain, TEXTURES))
    return Dataset(domain, ArraySource(train_images), train_labels, ArraySource(test_images), test_labels, names, "")


def _shuffled(images: NDArray[np.uint8], *context: int | str) -> tuple[Tensor, Tensor]:
    """From (N, H, W, 3) class after class to (N, 3, H, W) in random order, and the labels."""
    labels = torch.arange(10).repeat_interleave(len(images) // 10)
    order = permutation(torch.arange(len(images)), *context, "order")
    return torch.from_numpy(images).permute(0, 3, 1, 2)[order].contiguous(), labels[order]


@lru_cache(maxsize=_KEPT)
def _digits(seed: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Real handwriting, 8×8 upscaled, white on black; different images in the two parts."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)

    def upscaled(position: int) -> NDArray[np.uint8]:
        grey = Image.fromarray((pixels[position].reshape(8, 8) * (255 / 16)).astype(np.uint8))
        return np.asarray(grey.resize((size, size), Image.Resampling.BICUBIC).convert("RGB"))

    train, test = [], []
    for digit in range(10):
        of_digit = np.flatnonzero(labels == digit)
        order = of_digit[permutation(torch.from_numpy(of_digit), seed, "digits").numpy()]
        images = list(map(upscaled, order[: NUM_TRAIN + NUM_TEST]))
        train += images[:NUM_TRAIN]
        test += images[NUM_TRAIN:]
    return np.stack(train), np.stack(test)


@lru_cache(maxsize=_KEPT)
def _drawn(domain: str, num_each: int, size: int, seed: int, *, is_test: bool) -> NDArray[np.uint8]:
    rng = np.random.default_rng(hashed(seed, "embedded", domain, int(is_test)))

    num = 10 * num_each
    seen = None if is_test else -_NUM_TEST_ONLY_FONTS  # the fonts up to here
    if domain == "capitals":
        ink = _masks(CAPITALS, _LATIN_FONTS[:seen], num_each, size, rng)
        front, back = _colours(num, 0.75, 1.0, rng), _colours(num, 0.05, 0.4, rng)
    elif domain == "greek":
        ink = _masks("".join(GREEK), _GREEK_FONTS[:seen], num_each, size, rng)
        front, back = _colours(num, 0.0, 0.3, rng), _striped(num, size, rng)
    elif domain == "symbols":
        ink = _masks("".join(SYMBOLS), _SYMBOL_FONTS, num_each, size, rng, is_outlined=True)
        front, back = _colours(num, 0.8, 1.0, rng), _noisy(num, size, rng)
    else:
        # At twice the size, averaged down.
        large = np.concatenate([draw(num_each, size * _TEXTURE_SUPERSAMPLING, rng) for draw in TEXTURES.values()])
        ink = large.reshape(num, size, _TEXTURE_SUPERSAMPLING, size, _TEXTURE_SUPERSAMPLING).mean(axis=(2, 4))
        dark, light = _colours(num, 0.05, 0.4, rng), _colours(num, 0.6, 1.0, rng)
        swap = rng.random((num, 1, 1, 1)) < 0.5
        front, back = np.where(swap, dark, light), np.where(swap, light, dark)
    ink = ink[..., None]  # (N, H, W, 1)
    return np.asarray((255 * (ink * front + (1 - ink) * back)).round().clip(0, 255), dtype=np.uint8)


def _colours(num: int, darkest: float, lightest: float, rng: Rng) -> Floats:
    """Random hues whose brightest channel lies between the bounds, (N, 1, 1, 3)."""
    hues = rng.random((num, 1, 1, 3))
    hues = hues / hues.max(axis=-1, keepdims=True)
    value = rng.uniform(darkest, lightest, (num, 1, 1, 1))
    # A light colour is a pale one: a pure blue of full brightness would still look dark.
    return np.asarray(value * (hues * (1 - 0.6 * value) + 0.6 * value))


def _striped(num: int, size: int, rng: Rng) -> Floats:
    """Two pale colours that alternate in soft stripes, or fade once over the image, (N, H, W, 3)."""
    down, across = np.mgrid[0:size, 0:size] / size
    angle, phase = rng.uniform(0, 2 * np.pi, (2, num, 1, 1))
    frequency = np.where(rng.random((num, 1, 1)) < 0.5, 0.4, rng.uniform(1.5, 3.5, (num, 1, 1)))
    along = across * np.cos(angle) + down * np.sin(angle)
    share = (0.5 + 0.5 * np.sin(2 * np.pi * frequency * along + phase))[..., None]  # (N, H, W, 1)
    return np.asarray(share * _colours(num, 0.7, 1.0, rng) + (1 - share) * _colours(num, 0.7, 1.0, rng))


def _noisy(num: int, size: int, rng: Rng) -> Floats:
    """A dim colour with noise of each pixel's own, (N, H, W, 3)."""
    strength = rng.uniform(0.05, 0.12, (num, 1, 1, 1))
    return np.asarray(_colours(num, 0.2, 0.5, rng) + strength * rng.standard_normal((num, size, size, 3)))


@lru_cache(maxsize=1024)
def _master(font_name: str, character: str, is_outlined: bool) -> Image.Image:
    """The glyph in white on black, centred, its longer side always `_GLYPH`."""
    import matplotlib

    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font_name}.ttf", 160)
    canvas = Image.new("L", (400, 400))
    draw = ImageDraw.Draw(canvas)
    # An outline is the stroke around a glyph whose inside is painted over.
    stroke = 9 if is_outlined else 0
    fill = 0 if is_outlined else 255
    draw.text((200, 200), character, font=font, anchor="mm", fill=fill, stroke_width=stroke, stroke_fill=255)
    glyph = canvas.crop(canvas.getbbox())
    scale = _GLYPH / max(glyph.size)
    size = (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale)))
    master = Image.new("L", (_MASTER, _MASTER))
    left, top = (_MASTER - size[0]) // 2, (_MASTER - size[1]) // 2
    master.paste(glyph.resize(size, Image.Resampling.BILINEAR), (left, top))
    return master


def _masks(
    characters: str, fonts: Sequence[str], num_each: int, size: int, rng: Rng, is_outlined: bool = False
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
    side = size * _GLYPH_SUPERSAMPLING
    scale = _GLYPH / (height * side)  # pixels of the master per pixel of the canvas
    cosine, sine = scale * math.cos(math.radians(tilt)), scale * math.sin(math.radians(tilt))
    x, y = side / 2 + across * side, side / 2 + down * side
    centre = _MASTER / 2
    # PIL asks for the inverse map: from the canvas back to the master.
    inverse = (cosine, sine, centre - cosine * x - sine * y, -sine, cosine, centre + sine * x - cosine * y)
    large = glyph.transform((side, side), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)
    return large.reduce(_GLYPH_SUPERSAMPLING)


# Coordinates run over [0, 1) across and down; parameters of shape (N, 1, 1) make one picture each.


def _grid(num: int, side: int, tilt: float, rng: Rng) -> tuple[Floats, Floats]:
    """Coordinates (N, side, side), turned by `tilt` degrees give or take 8, with a random origin."""
    down, across = np.mgrid[0:side, 0:side] / side
    angle = np.radians(tilt + rng.uniform(-8, 8, (num, 1, 1)))
    origin_x, origin_y = rng.uniform(0, 1, (2, num, 1, 1))
    x = across * np.cos(angle) + down * np.sin(angle) + origin_x
    y = down * np.cos(angle) - across * np.sin(angle) + origin_y
    return x, y


def _between(low: float, high: float, num: int, rng: Rng) -> Floats:
    return rng.uniform(low, high, (num, 1, 1))


def _wave(x: Floats) -> Floats:
    return 0.5 + 0.5 * np.sin(2 * np.pi * x)


def _sharp(values: Floats) -> Floats:
    """Nearly black and white, with edges a little soft."""
    return np.clip(0.5 + 4 * (values - 0.5), 0, 1)


def _stripes(num: int, side: int, rng: Rng, tilt: float) -> Floats:
    x, _ = _grid(num, side, tilt, rng)
    return _sharp(_wave(x * _between(2.5, 5, num, rng)))


def _checker(num: int, side: int, rng: Rng) -> Floats:
    x, y = _grid(num, side, 0, rng)
    frequency = 2 * np.pi * _between(1.5, 3, num, rng)
    return _sharp(0.5 + np.sin(x * frequency) * np.sin(y * frequency))


def _dots(num: int, side: int, rng: Rng) -> Floats:
    x, y = _grid(num, side, 30, rng)
    frequency = _between(2.5, 4.5, num, rng)
    x, y = (x * frequency) % 1 - 0.5, (y * frequency) % 1 - 0.5
    return np.clip(0.5 + 8 * (_between(0.28, 0.38, num, rng) - np.hypot(x, y)), 0, 1)


def _rings(num: int, side: int, rng: Rng) -> Floats:
    down, across = np.mgrid[0:side, 0:side] / side
    centre_x, centre_y = rng.uniform(0.2, 0.8, (2, num, 1, 1))
    radius = np.hypot(across - centre_x, down - centre_y)
    return _sharp(_wave(radius * _between(3, 6, num, rng) + _between(0, 1, num, rng)))


def _noise(num: int, side: int, rng: Rng, low: float, high: float) -> Floats:
    """A dozen waves of random directions with frequencies between the two bounds."""
    down, across = np.mgrid[0:side, 0:side] / side
    values = np.zeros((num, side, side))
    for _ in range(12):
        frequency, angle = _between(low, high, num, rng), _between(0, 2 * np.pi, num, rng)
        phase = _between(0, 2 * np.pi, num, rng)
        values += np.sin(2 * np.pi * frequency * (across * np.cos(angle) + down * np.sin(angle)) + phase)
    return np.asarray(np.clip(0.5 + values / 8, 0, 1))


def _bricks(num: int, side: int, rng: Rng) -> Floats:
    x, y = _grid(num, side, 0, rng)
    frequency = _between(3, 5, num, rng)
    row = y * frequency
    along = x * frequency / 2 + 0.5 * (np.floor(row) % 2)
    to_joint = np.minimum(np.minimum(row % 1, 1 - row % 1), 2 * np.minimum(along % 1, 1 - along % 1))
    return np.asarray(np.clip(10 * (to_joint - 0.06), 0, 1))


def _waves(num: int, side: int, rng: Rng) -> Floats:
    x, y = _grid(num, side, 0, rng)
    bend = _between(0.05, 0.09, num, rng) * np.sin(2 * np.pi * x * _between(1.8, 2.8, num, rng))
    return _sharp(_wave((y + bend) * _between(3, 5, num, rng)))


TEXTURES: dict[str, Draw] = {
    "upright stripes": partial(_stripes, tilt=0),
    "level stripes": partial(_stripes, tilt=90),
    "diagonal stripes": partial(_stripes, tilt=45),
    "checker": _checker,
    "dots": _dots,
    "rings": _rings,
    "coarse noise": partial(_noise, low=1, high=2.5),
    "fine noise": partial(_noise, low=5, high=8),
    "bricks": _bricks,
    "waves": _waves,
}
