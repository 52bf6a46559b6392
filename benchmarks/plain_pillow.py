"""The usual way, to be measured against: one image at a time, with Pillow, in one process."""

import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps


def view(image: Image.Image, size: int, smallest: float, blur: bool) -> NDArray[np.float32]:
    """Random crop, flip, jitter, grey and blur as in MoCo v2, then a float array."""
    seen = _crop(image, size, smallest)
    if random.random() < 0.8:
        seen = _jitter(seen)
    if random.random() < 0.2:
        seen = ImageOps.grayscale(seen).convert("RGB")
    if blur and random.random() < 0.5:
        seen = seen.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    if random.random() < 0.5:
        seen = ImageOps.mirror(seen)
    pixels = np.asarray(seen, dtype=np.float32).transpose(2, 0, 1) / 255
    return np.asarray((pixels - 0.45) / 0.25, dtype=np.float32)


def _crop(image: Image.Image, size: int, smallest: float) -> Image.Image:
    width, height = image.size
    for _ in range(10):
        area = random.uniform(smallest, 1.0) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            box = (left, top, left + wide, top + high)
            return image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _jitter(image: Image.Image) -> Image.Image:
    changes = [
        lambda seen: ImageEnhance.Brightness(seen).enhance(random.uniform(0.6, 1.4)),
        lambda seen: ImageEnhance.Contrast(seen).enhance(random.uniform(0.6, 1.4)),
        lambda seen: ImageEnhance.Color(seen).enhance(random.uniform(0.6, 1.4)),
        _hue,
    ]
    random.shuffle(changes)
    for change in changes:
        image = change(image)
    return image


def _hue(image: Image.Image) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue, dtype=np.int16) + round(random.uniform(-0.1, 0.1) * 255)) % 256
    return Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")
