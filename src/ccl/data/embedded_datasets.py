"""Five small sets that need no download, drawn from a seed; they differ in kind, so that a stream of them drifts.

Handwritten digits (real images, from scikit-learn), light capitals on dark colours, dark Greek letters on pale
stripes, outlined symbols in noise, and textures. Colours are drawn apart from the class.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data import glyphs, textures
from ccl.data.dataset import Dataset, numbered
from ccl.data.sources import ArraySource
from ccl.seeding import hashed, permutation

Floats = NDArray[np.float64]

NATIVE_SIZE, MIN_SIZE, MAX_SIZE = 24, 16, 32
NUM_TRAIN, NUM_TEST = 100, 40  # per class
_KEPT = 16  # parts of sets, of up to 3 MB each, that a process draws once: a short run learns faster than it draws

CAPITALS = "ABEGHKMRSX"
_GREEK_NAMES = "alpha beta gamma delta theta lambda xi pi psi omega"
_SYMBOL_NAMES = "spade heart star arrow knight infinity sum note umbrella telephone"
GREEK = dict(zip("αβγδθλξπψω", _GREEK_NAMES.split(), strict=True))
SYMBOLS = dict(zip("♠♥★➔♞∞∑♪☂☎", _SYMBOL_NAMES.split(), strict=True))


def generate(domain: str, seed: int, size: int = NATIVE_SIZE) -> Dataset:
    """One of the five domains: ten classes, 100 training and 40 test images of each, in an order without classes."""
    if domain == "digits":
        train, test = _digits(seed, size)
        names = tuple("0123456789")
    else:
        names = _CLASS_NAMES[domain]
        train = _drawn(domain, NUM_TRAIN, size, seed, is_test=False)
        test = _drawn(domain, NUM_TEST, size, seed, is_test=True)
    train_images, train_labels = _shuffled(train, seed, domain, "train")
    test_images, test_labels = _shuffled(test, seed, domain, "test")
    return numbered(
        Dataset(domain, ArraySource(train_images), train_labels, ArraySource(test_images), test_labels, names, "")
    )


_CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "capitals": tuple(CAPITALS),
    "greek": tuple(GREEK.values()),
    "symbols": tuple(SYMBOLS.values()),
    "textures": tuple(textures.TEXTURES),
}


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
    train, test = [], []
    for digit in range(10):
        of_digit = np.flatnonzero(labels == digit)
        order = of_digit[permutation(torch.from_numpy(of_digit), seed, "digits").numpy()]
        train.extend(order[:NUM_TRAIN])
        test.extend(order[NUM_TRAIN : NUM_TRAIN + NUM_TEST])

    def upscaled(position: int) -> NDArray[np.uint8]:
        grey = Image.fromarray((pixels[position].reshape(8, 8) * (255 / 16)).astype(np.uint8))
        return np.asarray(grey.resize((size, size), Image.Resampling.BICUBIC).convert("RGB"))

    return np.stack([upscaled(position) for position in train]), np.stack([upscaled(position) for position in test])


@lru_cache(maxsize=_KEPT)
def _drawn(domain: str, num_each: int, size: int, seed: int, *, is_test: bool) -> NDArray[np.uint8]:
    rng = np.random.default_rng(hashed(seed, "embedded", domain, int(is_test)))

    def seen(fonts: tuple[str, ...]) -> tuple[str, ...]:
        return fonts if is_test else fonts[: -glyphs.NUM_TEST_ONLY_FONTS]

    num = 10 * num_each
    if domain == "capitals":
        ink = glyphs.masks(CAPITALS, seen(glyphs.LATIN_FONTS), num_each, size, rng)
        front, back = _colours(num, 0.75, 1.0, rng), _colours(num, 0.05, 0.4, rng)
    elif domain == "greek":
        ink = glyphs.masks("".join(GREEK), seen(glyphs.GREEK_FONTS), num_each, size, rng)
        front, back = _colours(num, 0.0, 0.3, rng), _striped(num, size, rng)
    elif domain == "symbols":
        ink = glyphs.masks("".join(SYMBOLS), glyphs.SYMBOL_FONTS, num_each, size, rng, is_outlined=True)
        front, back = _colours(num, 0.8, 1.0, rng), _noisy(num, size, rng)
    else:
        ink = textures.fields(num_each, size, rng)
        dark, light = _colours(num, 0.05, 0.4, rng), _colours(num, 0.6, 1.0, rng)
        swap = rng.random((num, 1, 1, 1)) < 0.5
        front, back = np.where(swap, dark, light), np.where(swap, light, dark)
    ink = ink[..., None]  # (N, H, W, 1)
    return np.asarray((255 * (ink * front + (1 - ink) * back)).round().clip(0, 255), dtype=np.uint8)


def _colours(num: int, darkest: float, lightest: float, rng: np.random.Generator) -> Floats:
    """Random hues whose brightest channel lies between the bounds, (N, 1, 1, 3)."""
    hues = rng.random((num, 1, 1, 3))
    hues = hues / hues.max(axis=-1, keepdims=True)
    value = rng.uniform(darkest, lightest, (num, 1, 1, 1))
    # A light colour is a pale one: a pure blue of full brightness would still look dark.
    return np.asarray(value * (hues * (1 - 0.6 * value) + 0.6 * value))


def _striped(num: int, size: int, rng: np.random.Generator) -> Floats:
    """Two pale colours that alternate in soft stripes, or fade once over the image, (N, H, W, 3)."""
    down, across = np.mgrid[0:size, 0:size] / size
    angle, phase = rng.uniform(0, 2 * np.pi, (2, num, 1, 1))
    frequency = np.where(rng.random((num, 1, 1)) < 0.5, 0.4, rng.uniform(1.5, 3.5, (num, 1, 1)))
    along = across * np.cos(angle) + down * np.sin(angle)
    share = (0.5 + 0.5 * np.sin(2 * np.pi * frequency * along + phase))[..., None]  # (N, H, W, 1)
    return np.asarray(share * _colours(num, 0.7, 1.0, rng) + (1 - share) * _colours(num, 0.7, 1.0, rng))


def _noisy(num: int, size: int, rng: np.random.Generator) -> Floats:
    """A dim colour with noise of each pixel's own, (N, H, W, 3)."""
    strength = rng.uniform(0.05, 0.12, (num, 1, 1, 1))
    return np.asarray(_colours(num, 0.2, 0.5, rng) + strength * rng.standard_normal((num, size, size, 3)))
