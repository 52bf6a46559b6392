"""Colour jitter and grey by torchvision's formulas for a batch of images (N, 3, S, S) in 0 … 1, without a loop."""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow; torchvision writes 0.2989
SOLARISED_FROM = 128 / 255
_ONE_BY_ONE_FROM = 2**16  # values of an image; measured on a CPU
ORDERS = torch.tensor(list(permutations(range(4))))  # (24, 4): every order of OPERATIONS


def jitter_(images: Tensor, factors: Tensor, orders: Tensor, chosen: Tensor) -> Tensor:
    """The four operations on each chosen image, by its factors and in its order, (N, 4) on the CPU, in place."""
    if images.device.type == "cpu" and images[:1].numel() >= _ONE_BY_ONE_FROM:
        return _jitter_one_by_one_(images, factors, orders, chosen)
    # Before each of the four rounds the chosen are sorted by what comes next, so that every operation runs once a
    # round, in place, on a slice. The random order of torchvision then costs five copies of them.
    rows = chosen.nonzero()[:, 0]  # (n,): the image at each place of the sorted copy
    sorted_images, places = images, rows  # places: where to find them
    for operation in orders.unbind(1):
        task = operation[rows]  # (n,)
        order = torch.argsort(task, stable=True)
        rows = rows[order]
        sorted_images = sorted_images.index_select(0, places[order].to(images.device))
        places = torch.arange(len(rows))
        ends = torch.bincount(task, minlength=len(OPERATIONS)).cumsum(0).tolist()
        start = 0
        for number, (adjust_, end) in enumerate(zip(OPERATIONS, ends, strict=True)):
            if end > start:
                adjust_(sorted_images[start:end], factors[rows[start:end], number].to(images.device))
            start = end
    return images.index_copy_(0, rows.to(images.device), sorted_images)


def _jitter_one_by_one_(images: Tensor, factors: Tensor, orders: Tensor, chosen: Tensor) -> Tensor:
    """The same without copies: a large image fills the cache alone, and a loop over such costs little."""
    for row in chosen.nonzero()[:, 0].tolist():
        for number in orders[row].tolist():
            OPERATIONS[number](images[row : row + 1], factors[row : row + 1, number])
    return images


def adjust_brightness_(images: Tensor, factors: Tensor) -> Tensor:
    """Scale all values."""
    return images.mul_(_per_image(factors)).clamp_(0, 1)


def adjust_contrast_(images: Tensor, factors: Tensor) -> Tensor:
    """Move all values away from the image's mean grey, or towards it."""
    red, green, blue = images.flatten(2).mean(2).unbind(1)  # (N,)
    mean = GREY[0] * red + GREY[1] * green + GREY[2] * blue  # (N,)
    return images.mul_(_per_image(factors)).add_(_per_image((1 - factors) * mean)).clamp_(0, 1)


def adjust_saturation_(images: Tensor, factors: Tensor) -> Tensor:
    """Move each pixel away from its own grey, or towards it."""
    grey = luminance(images).mul_(_per_image(1 - factors))  # (N, 1, S, S)
    return images.mul_(_per_image(factors)).add_(grey).clamp_(0, 1)


def adjust_hue_(images: Tensor, factors: Tensor) -> Tensor:
    """Turn each pixel's hue in HSV by a share of the circle; value and saturation stay."""
    # The sectors are told apart by 0/1 masks: several times as fast on a CPU as torch.where. Memory is used again and
    # again for the same reason; products with 2, 4 and 6 below are exact, so that it matters not how they are added.
    red, green, blue = images.split_with_sizes((1, 1, 1), 1)  # (N, 1, S, S)
    larger = torch.maximum(red, green)
    darkest = torch.minimum(red, green)
    torch.minimum(darkest, blue, out=darkest)
    is_blue = torch.gt(blue, larger, out=torch.empty_like(larger))
    is_green = torch.gt(green, red, out=torch.empty_like(larger))
    chroma = torch.maximum(larger, blue, out=larger).sub_(darkest)
    # Sixths of the circle from red, times chroma: G-B, or B-R + 2 chroma, or R-G + 4 chroma, by the largest channel.
    hue = green - blue
    other = torch.add(blue, chroma, alpha=2).sub_(red).sub_(hue).mul_(is_green)
    hue.add_(other)
    torch.add(red, chroma, alpha=4, out=other).sub_(green).sub_(hue).mul_(is_blue)
    hue.add_(other)
    hue.div_(torch.clamp(chroma, min=1e-12, out=other))
    hue.add_(_per_image(6 * factors))
    hue.sub_(torch.mul(hue, 1 / 6, out=other).floor_(), alpha=6)  # into 0 … 6; torch.remainder is slow
    # Red is |hue - 3| - 1, green 2 - |hue - 2|, blue 2 - |hue - 4|, each cut to 0 … 1: the share of the chroma.
    torch.sub(hue, 3, out=red).abs_().sub_(1)
    torch.sub(hue, 2, out=green).abs_().neg_().add_(2)
    torch.sub(hue, 4, out=blue).abs_().neg_().add_(2)
    return images.clamp_(0, 1).mul_(chroma).add_(darkest)


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness_,
    adjust_contrast_,
    adjust_saturation_,
    adjust_hue_,
)


def solarise(images: Tensor) -> Tensor:
    """Invert all values from 128 of 255 on, as Pillow and torchvision do."""
    return torch.where(images >= SOLARISED_FROM, 1 - images, images)


def to_grey(images: Tensor) -> Tensor:
    """The luminance in all three channels, (N, 3, S, S)."""
    return luminance(images).expand_as(images)


def luminance(images: Tensor) -> Tensor:
    """(N, 1, S, S)."""
    red, green, blue = images.split_with_sizes((1, 1, 1), 1)
    return (GREY[0] * red).add_(GREY[1] * green).add_(GREY[2] * blue)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]
