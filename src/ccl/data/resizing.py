"""Every image of a dataset brought to one square size once and kept in memory."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data.dataset import Dataset, Progress
from ccl.data.decoding import BadImageError
from ccl.data.sources import ArraySource, ImageSource
from ccl.data.validation import Screened, each_part, look_through

_CHUNK = 2048


def resized(dataset: Dataset, side: int, progress: Progress | None = None) -> Dataset:
    """The centre square of every image at (side, side), anti-aliased; files that can't be decoded are left out.

    They are listed in `skipped`; when they are more than 5 % of a part, the dataset is refused.
    """

    def small_part(source: ImageSource) -> Screened:
        if source.image_size is None:
            return _resized_pictures(source, side, progress)
        return squared(source, side), torch.arange(len(source)), []

    return each_part(dataset, small_part)


def squared(source: ImageSource, side: int, progress: Progress | None = None) -> ArraySource:
    """The centre squares of images that are all sound, with their ids; raises BadImageError where one is not."""
    if source.image_size is None:
        images, bad = _resized_pictures(source, side, progress)[::2]
        if bad:
            raise BadImageError(bad[0].reason, bad[0].path)
        return ArraySource(images.read(torch.arange(len(images))), source.ids)
    if source.image_size == (side, side):
        return ArraySource(source.read(torch.arange(len(source))), source.ids)
    return ArraySource(_resized_arrays(source, side), source.ids)


def _resized_pictures(source: ImageSource, side: int, progress: Progress | None) -> Screened:
    images = torch.empty(len(source), 3, side, side, dtype=torch.uint8)

    def keep(number: int, pixels: NDArray[np.uint8]) -> None:
        images[number] = torch.from_numpy(pixels).permute(2, 0, 1)

    kept, bad = look_through(source, lambda picture: _square(picture, side), keep, progress)
    return ArraySource(images[: len(kept)]), kept, bad


def _resized_arrays(source: ImageSource, side: int) -> Tensor:
    images = torch.empty(len(source), 3, side, side, dtype=torch.uint8)
    for chunk in torch.split(torch.arange(len(source)), _CHUNK):
        pixels = source.read(chunk).float()  # (n, 3, H, W)
        height, width = pixels.shape[2:]
        square = min(height, width)
        top, left = (height - square) // 2, (width - square) // 2
        pixels = pixels[:, :, top : top + square, left : left + square]
        small = F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)
        images[chunk] = small.round().clamp(0, 255).to(torch.uint8)
    return images


def _square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    square = min(image.size)
    left, top = (image.width - square) / 2, (image.height - square) / 2
    small = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + square, top + square))
    return np.array(small, dtype=np.uint8)
