"""Every image of a dataset brought to one square size once and kept in memory."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data.dataset import Dataset, Progress, numbered
from ccl.data.decoding import BadImageError
from ccl.data.sources import ArraySource, FileSource, ImageSource
from ccl.errors import UserError

MAX_BAD_SHARE = 0.05
_CHUNK = 2048


def resized(dataset: Dataset, side: int, progress: Progress | None = None) -> Dataset:
    """The centre square of every image at (side, side), anti-aliased; files that can't be decoded are left out.

    They are listed in `skipped`; when they are more than 5 % of a part, the dataset is refused.
    """
    train, train_kept, train_bad = _resized_source(dataset.train, side, progress)
    train_labels = None if dataset.train_labels is None else dataset.train_labels[train_kept]
    test, test_labels = dataset.test, dataset.test_labels
    test_bad: list[str] = []
    if test is not None:
        test, test_kept, test_bad = _resized_source(test, side, progress)
        test_labels = None if test_labels is None else test_labels[test_kept]
    small = replace(
        dataset,
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        skipped=(*dataset.skipped, *train_bad, *test_bad),
    )
    return numbered(small)


def _resized_source(source: ImageSource, side: int, progress: Progress | None) -> tuple[ArraySource, Tensor, list[str]]:
    """The images, the positions they had in the source, and a line for each that is left out."""
    if source.image_size is not None:
        everything = torch.arange(len(source))
        images = source.read(everything) if source.image_size == (side, side) else _resized_arrays(source, side)
        return ArraySource(images), everything, []
    images = torch.empty(len(source), 3, side, side, dtype=torch.uint8)
    kept: list[int] = []
    bad: list[str] = []
    for position, pixels in enumerate(_decoded(source, side)):
        if isinstance(pixels, BadImageError):
            bad.append(f"{_title(source, position)}: {' '.join(str(pixels).split())}")
        else:
            images[len(kept)] = torch.from_numpy(pixels).permute(2, 0, 1)
            kept.append(position)
        if progress is not None:
            progress(position + 1, len(source))
    if len(bad) > MAX_BAD_SHARE * len(source):
        raise UserError(f"{len(bad)} of {len(source)} images can't be decoded, the first is {bad[0]}")
    return ArraySource(images[: len(kept)]), torch.tensor(kept, dtype=torch.int64), bad


def _title(source: ImageSource, position: int) -> str:
    return str(source.paths[position]) if isinstance(source, FileSource) else f"image {position}"


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


def _decoded(source: ImageSource, side: int) -> Iterator[NDArray[np.uint8] | BadImageError]:
    """Pictures in order, decoded by threads: Pillow lets go of the interpreter lock while it decodes."""

    def one(position: int) -> NDArray[np.uint8] | BadImageError:
        try:
            return _square(source.picture(position), side)
        except BadImageError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 16)) as pool:
        for chunk in torch.split(torch.arange(len(source)), _CHUNK):  # a bound on what waits in memory
            yield from pool.map(one, chunk.tolist())


def _square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    square = min(image.size)
    left, top = (image.width - square) / 2, (image.height - square) / 2
    small = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + square, top + square))
    return np.array(small, dtype=np.uint8)
