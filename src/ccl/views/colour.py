"""Colour jitter and grey for a batch of images with a factor each: no loop over images.

Images are float (N, 3, S, S) in 0 … 1, factors (N,). The formulas, the clamping after each operation and the random
order of the operations are torchvision's. Functions that end in an underscore work in place.
"""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow; torchvision writes 0.2989
ORDERS = torch.tensor(list(permutations(range(4))))  # (24, 4): every order of OPERATIONS


def jitter(images: Tensor, factors: Tensor, orders: Tensor, chosen: Tensor) -> Tensor:
    """The four operations on each chosen image, by its own factors (N, 4) and in its own order (N, 4).

    The images may be on a device; the rest is on the CPU.
    """
    # Before each of the four rounds the batch is sorted by what comes next, so that every operation runs once a
    # round, in place, on a slice. The random order of torchvision then costs five copies of the batch.
    place = torch.arange(len(images))  # (N,): where each image lies now
    for operation in orders.unbind(1):
        task = operation.masked_fill(~chosen, len(OPERATIONS))  # (N,); those not chosen come last
        rows = torch.argsort(task, stable=True)  # (N,)
        images = images.index_select(0, place[rows].to(images.device))
        place[rows] = torch.arange(len(rows))
        ends = torch.bincount(task, minlength=len(OPERATIONS)).cumsum(0).tolist()
        start = 0
        for number, (adjust_, end) in enumerate(zip(OPERATIONS, ends, strict=False)):
            if end > start:
                adjust_(images[start:end], factors[rows[start:end], number].to(images.device))
            start = end
    return images.index_select(0, place.to(images.device))


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
    # The sectors are told apart by 0/1 masks: several times as fast on a CPU as torch.where.
    red, green, blue = images.split_with_sizes((1, 1, 1), 1)  # (N, 1, S, S)
    larger = torch.maximum(red, green)
    darkest = torch.minimum(red, green).minimum(blue)
    is_blue = blue.clone().gt_(larger)
    is_green = green.clone().gt_(red)
    chroma = torch.maximum(larger, blue).sub_(darkest)
    # Sixths of the circle from red, times chroma: G-B, or B-R + 2 chroma, or R-G + 4 chroma, by the largest channel.
    hue = green - blue
    hue.add_((2 * chroma).add_(blue).sub_(red).sub_(hue).mul_(is_green))
    hue.add_((4 * chroma).add_(red).sub_(green).sub_(hue).mul_(is_blue))
    hue.div_(chroma.clamp(min=1e-12))
    hue.add_(_per_image(6 * factors))
    hue.sub_((hue * (1 / 6)).floor_().mul_(6))  # into 0 … 6; torch.remainder is slow
    # Red is |hue - 3| - 1, green 2 - |hue - 2|, blue 2 - |hue - 4|, each cut to 0 … 1: the share of the chroma.
    centre, sign, offset = images.new_tensor([[3, 2, 4], [1, -1, -1], [-1, 2, 2]])[:, :, None, None]
    torch.sub(hue, centre, out=images)
    return images.abs_().mul_(sign).add_(offset).clamp_(0, 1).mul_(chroma).add_(darkest)


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness_,
    adjust_contrast_,
    adjust_saturation_,
    adjust_hue_,
)


def to_grey(images: Tensor) -> Tensor:
    """The luminance in all three channels, (N, 3, S, S)."""
    return luminance(images).expand_as(images)


def luminance(images: Tensor) -> Tensor:
    """(N, 1, S, S)."""
    red, green, blue = images.split_with_sizes((1, 1, 1), 1)
    return (GREY[0] * red).add_(GREY[1] * green).add_(GREY[2] * blue)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]
