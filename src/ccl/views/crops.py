"""Which part of an image is seen, and crop, flip and resize as one batched resampling.

H, W: the images' size; S: the side of the view. A box is (left, top, width, height) in pixels.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ccl.views.batched_matmul import canvas, padded, products, products_from_left
from ccl.views.recipes import Recipe

NUM_ATTEMPTS = 10
NUM_BOX_DRAWS = 2 * NUM_ATTEMPTS + 2  # area and ratio of each attempt, then one place
_BOX_BY_BOX_FROM = 96**3  # multiplications of a line's resampling; measured on a CPU
_TILE = 56  # pixels of a line; measured on a CPU


def random_boxes(recipe: Recipe, heights: Tensor, widths: Tensor, uniforms: Tensor) -> Tensor:
    """Boxes (N, 4) of whole pixels as RandomResizedCrop draws them, from numbers (N, NUM_BOX_DRAWS) in [0, 1)."""
    # In double precision: rounding to pixels then can't depend on how a batch is vectorised.
    height, width = heights.double(), widths.double()  # (N,)
    draws = uniforms.double()  # (N, K)
    scale = recipe.min_scale + (recipe.max_scale - recipe.min_scale) * draws[:, :NUM_ATTEMPTS]
    low, high = math.log(recipe.min_ratio), math.log(recipe.max_ratio)
    ratio = torch.exp(low + (high - low) * draws[:, NUM_ATTEMPTS : 2 * NUM_ATTEMPTS])
    area = scale * (height * width)[:, None]
    box_widths = torch.sqrt(area * ratio).round()  # (N, attempts)
    box_heights = torch.sqrt(area / ratio).round()
    fits = (
        (box_widths >= 1) & (box_widths <= width[:, None]) & (box_heights >= 1) & (box_heights <= height[:, None])
    )  # (N, attempts)
    first = fits.int().argmax(1, keepdim=True)  # (N, 1); the first of equal maxima
    found = fits.any(1)  # (N,)
    fallback_width, fallback_height = _nearest_ratio(recipe, height, width)
    box_width = torch.where(found, box_widths.gather(1, first)[:, 0], fallback_width)
    box_height = torch.where(found, box_heights.gather(1, first)[:, 0], fallback_height)
    free_x, free_y = width - box_width, height - box_height
    place_x, place_y = draws[:, -2], draws[:, -1]
    left = torch.where(found, (place_x * (free_x + 1)).floor(), (free_x / 2).floor())
    top = torch.where(found, (place_y * (free_y + 1)).floor(), (free_y / 2).floor())
    return torch.stack([left, top, box_width, box_height], 1).float()


def _nearest_ratio(recipe: Recipe, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Width and height of the largest box with an allowed ratio: what is taken where no attempt fits."""
    # Differs: torchvision may round a side to 0 in an image one pixel thin.
    box_width = torch.minimum(width, (height * recipe.max_ratio).round().clamp(min=1))
    box_height = torch.minimum(height, (width / recipe.min_ratio).round().clamp(min=1))
    return box_width, box_height


def plain_boxes(recipe: Recipe, heights: Tensor, widths: Tensor) -> Tensor:
    """Boxes (N, 4): the centre square of `plain_fraction` of the shorter side; a square image whole where that is 1."""
    side = (torch.minimum(heights, widths).double() * recipe.plain_fraction).round().clamp(min=1)  # (N,)
    left, top = ((widths - side) / 2).floor(), ((heights - side) / 2).floor()
    return torch.stack([left, top, side, side], 1).float()


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Each image's box, mirrored where `flip`, resized to (N, 3, S, S) float; uint8 comes out in 0 … 1.

    Images (N, 3, H, W), boxes (N, 4), flip (N,) bool, all on one device. Bilinear and anti-aliased with Pillow's
    weights: the same as crop, then `resize` with BILINEAR.
    """
    height, width = images.shape[2:]
    unit = 1 / 255 if images.dtype == torch.uint8 else 1.0
    whole = torch.tensor([0, 0, width, height], device=boxes.device)
    if height == width == size and bool((boxes == whole).all()) and not bool(flip.any()):
        return images.float() * unit  # bit for bit what the weights below would give
    no_flip = torch.zeros_like(flip)
    across = _weights(boxes[:, 0], boxes[:, 2], flip, width, size)  # (N, S', W'): sides are padded
    down = _weights(boxes[:, 1], boxes[:, 3], no_flip, height, size) * unit  # (N, S', H')
    if images.device.type == "cpu" and height * width * size >= _BOX_BY_BOX_FROM:
        views = _box_by_box(images, boxes, flip, across, down, size)
    else:
        floats = canvas(images)  # (N, 3, H', W')
        narrow = products(floats.flatten(1, 2), across.transpose(1, 2))  # (N, 3H', S')
        views = products_from_left(down, narrow.view(*floats.shape[:3], padded(size)))  # (N, 3, S', S')
    return views[:, :, :size, :size].contiguous()  # (N, 3, S, S)


def _box_by_box(images: Tensor, boxes: Tensor, flip: Tensor, across: Tensor, down: Tensor, size: int) -> Tensor:
    """The same sums without the zeros: for large images that outweighs a loop over them and over tiles of a view."""
    out = torch.empty(len(images), 3, padded(size), padded(size))
    for number, (box, is_flipped) in enumerate(zip(boxes.tolist(), flip.tolist(), strict=True)):
        left, top, width, height = (int(side) for side in box)
        box_pixels = images[number, :, top : top + height, left : left + width]
        rows = box_pixels.to(torch.float32, copy=True, memory_format=torch.contiguous_format).flatten(0, 1)  # (3h, w)
        narrow = rows.new_empty(3 * height, size)
        for here, near in _tiles(width, size, is_flipped):
            weights = across[number, here, left + near.start : left + near.stop]
            torch.mm(rows[:, near], weights.t(), out=narrow[:, here])
        planes = narrow.view(3, height, size)
        for here, near in _tiles(height, size, False):
            weights = down[number, here, top + near.start : top + near.stop]
            for channel in range(3):
                torch.mm(weights, planes[channel, near], out=out[number, channel, here, :size])
    return out


def _tiles(length: int, size: int, is_flipped: bool) -> Iterator[tuple[slice, slice]]:
    """Pixels of a resized line in pieces, and for each piece the pixels of the box that it is made of."""
    scale = length / size
    reach = max(scale, 1.0) + 1  # one more than needed, so that no rounding matters
    for start in range(0, size, _TILE):
        end = min(start + _TILE, size)
        first, last = (size - end, size - start) if is_flipped else (start, end)
        yield slice(start, end), slice(max(int(first * scale - reach), 0), min(int(last * scale + reach) + 1, length))


def _weights(start: Tensor, length: Tensor, reverse: Tensor, num_pixels: int, size: int) -> Tensor:
    """What each pixel of a line gives to each pixel of its resized, perhaps mirrored box: (N, size, num_pixels).

    Both sides are padded: pixels beyond the line give nothing, and those beyond the view repeat its last.
    """
    scale = (length / size)[:, None]  # (N, 1)
    steps = torch.arange(padded(size), device=start.device, dtype=torch.float32).clamp_(max=size - 1) + 0.5  # (S,)
    steps = torch.where(reverse[:, None], size - steps, steps)  # (N, S)
    centres = start[:, None] + steps * scale  # (N, S)
    pixels = torch.arange(padded(num_pixels), device=start.device, dtype=torch.float32) + 0.5  # (W,)
    # A triangle one source pixel wide on each side, and wider where the box shrinks: that is the anti-aliasing.
    reach = scale.clamp(min=1)[:, :, None]  # (N, 1, 1)
    weights = (pixels - centres[:, :, None]).abs_().div_(-reach).add_(1)  # (N, S, W)
    inside = (pixels > start[:, None]) & (pixels < (start + length)[:, None])  # (N, W)
    # Pixels outside the box give nothing, as if it had been cut out first; the rest share the sum of 1.
    torch.minimum(weights, inside[:, None].float(), out=weights).clamp_(min=0)
    return weights.div_(weights.sum(2, keepdim=True))
