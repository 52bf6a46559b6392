"""Crop, flip, resize and blur of a batch as matrix products, one for each image, whose bits do not depend on the batch.

A matrix library chooses its code, and with it the order of its sums, by the shape of a matrix, by where the matrix
starts in a cache line and by whether it is alone. So here all matrices of a product have one shape, each starts a cache
line, and none is alone: with sides of a multiple of 4 floats, a matrix is a multiple of the 64 bytes of a line.
H, W: the images' size; S: the side of the view. A box is (left, top, width, height) in pixels.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

_MULTIPLE = 4  # its square is 16 floats
_TILE = 56  # pixels of a line; measured on a CPU
_CROP_BY_BOX_FROM = 96**3  # multiplications of a line's resampling; measured on a CPU
_BLUR_BY_TILE_FROM = 128  # pixels of a line; measured on a CPU


def padded(length: int) -> int:
    """The side of a matrix that has room for so many values."""
    return -(-length // _MULTIPLE) * _MULTIPLE


def canvas(images: Tensor) -> Tensor:
    """A copy (N, 3, padded H, padded W) as float in memory of its own, with zeros to the right and below."""
    height, width = images.shape[2:]
    copied = images.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if (padded(height), padded(width)) == (height, width):
        return copied
    return F.pad(copied, (0, padded(width) - width, 0, padded(height) - height))


def products(left: Tensor, right: Tensor) -> Tensor:
    """(B, M, N) from (B, M, K) and (B, K, N), each the first part of fresh memory or a transposed such."""
    if len(left) == 1:  # torch multiplies a single pair by another function than a batch of them
        return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
    return torch.bmm(left, right)


def products_from_left(left: Tensor, images: Tensor) -> Tensor:
    """(N, 3, S, W) from a matrix (N, S, H) for each image and the images (N, 3, H, W)."""
    num_images, num_channels, _, width = images.shape
    lefts = left[:, None].expand(-1, num_channels, -1, -1).flatten(0, 1)  # (3N, S, H)
    return products(lefts, images.flatten(0, 1)).view(num_images, num_channels, left.shape[1], width)


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
    if images.device.type == "cpu" and height * width * size >= _CROP_BY_BOX_FROM:
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
        for here, near in _crop_tiles(width, size, is_flipped):
            weights = across[number, here, left + near.start : left + near.stop]
            torch.mm(rows[:, near], weights.t(), out=narrow[:, here])
        planes = narrow.view(3, height, size)
        for here, near in _crop_tiles(height, size, False):
            weights = down[number, here, top + near.start : top + near.stop]
            for channel in range(3):
                torch.mm(weights, planes[channel, near], out=out[number, channel, here, :size])
    return out


def _crop_tiles(length: int, size: int, is_flipped: bool) -> Iterator[tuple[slice, slice]]:
    """Pixels of a resized line in pieces, and for each piece the pixels of the box that it is made of."""
    scale = length / size
    reach = max(scale, 1.0) + 1  # one more than needed, so that no rounding matters
    for start in range(0, size, _TILE):
        end = min(start + _TILE, size)
        first, last = (size - end, size - start) if is_flipped else (start, end)
        yield slice(start, end), slice(max(int(first * scale - reach), 0), min(int(last * scale + reach) + 1, length))


def _weights(start: Tensor, length: Tensor, reverse: Tensor, num_pixels: int, size: int) -> Tensor:
    """Weights of each pixel of a line in each pixel of its resized, perhaps mirrored box: (N, size, num_pixels).

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


def blur_radius(max_sigma: float) -> int:
    """Pixels to each side: three sigma, beyond which lies less than 0.3 % of the weight."""
    return math.ceil(3 * max_sigma)


def gaussian_blur(images: Tensor, sigmas: Tensor, radius: int) -> Tensor:
    """Images (N, 3, H, W) blurred by sigmas (N,); the border reflects, the edge pixel itself not repeated."""
    # Differs: MoCo blurs with Pillow, whose GaussianBlur is three box blurs that approximate this.
    height, width = images.shape[2:]
    offsets = torch.arange(radius + 1, device=images.device, dtype=torch.float64)  # (R+1,)
    kernels = torch.exp(-0.5 * (offsets / sigmas.double()[:, None]) ** 2)  # (N, R+1): the right half
    kernels = kernels / (2 * kernels.sum(1, keepdim=True) - kernels[:, :1])
    # In double precision, which adds multiples of 2^-52 exactly: no order of the sums below can change a bit.
    kernels = (kernels * 2**52).round_().mul_(2**-52)
    floats = canvas(images)  # (N, 3, H', W'): sides are padded
    if images.device.type == "cpu" and min(height, width) >= _BLUR_BY_TILE_FROM:
        return _blurred_by_tiles(floats, kernels, height, width)[:, :, :height, :width]
    across, down = (
        _band_matrices(kernels, length, 0, padded(length)) for length in (width, height)
    )  # (N, W', W'), (N, H', H')
    rows = products(floats.flatten(1, 2), across.transpose(1, 2))  # (N, 3H', W')
    return products_from_left(down, rows.view(floats.shape))[:, :, :height, :width]


def _blurred_by_tiles(images: Tensor, kernels: Tensor, height: int, width: int) -> Tensor:
    """The same sums without the zeros away from the bands: a tile of pixels needs its neighbours only."""
    across = _blur_tiles(kernels, width)
    down = across if height == width else _blur_tiles(kernels, height)
    out, planes = torch.empty_like(images), torch.empty_like(images[0])  # (N, 3, H', W'), (3, H', W')
    # One by one, because torch multiplies a batch by another function than a single image.
    for number, image in enumerate(images):
        for here, near, bands in across:
            torch.mm(image.flatten(0, 1)[:, near], bands[number].t(), out=planes.flatten(0, 1)[:, here])
        for here, near, bands in down:
            for channel in range(3):
                torch.mm(bands[number], planes[channel, near], out=out[number, channel, here])
    return out


def _blur_tiles(kernels: Tensor, length: int) -> list[tuple[slice, slice, Tensor]]:
    """Pixels of a line in pieces; for each piece the pixels that the blur takes it from, and its band matrices."""
    radius, end = kernels.shape[1] - 1, padded(length)
    return [
        (slice(start, stop), _near(start, stop, radius, end), _band_matrices(kernels, length, start, stop))
        for start, stop in pairwise([*range(0, end, _TILE), end])
    ]


def _near(start: int, stop: int, radius: int, end: int) -> slice:
    """The pixels within reach of start … stop - 1, rounded so that the band matrices have padded sides."""
    return slice(max(start - padded(radius), 0), min(stop + padded(radius), end))


def _band_matrices(kernels: Tensor, length: int, start: int, stop: int) -> Tensor:
    """The blur of pixels start … stop - 1 of a line as a matrix for each right half of a kernel: (N, pixels, near)."""
    # Matrices rather than a grouped convolution: 3 times as fast on a CPU at 32 px (at 224 px it depends on the block).
    bands = _bands(length, kernels.shape[1] - 1, start, stop, kernels.device)
    return torch.mm(kernels, bands.flatten(1)).float().view(len(kernels), *bands.shape[1:])


@lru_cache(maxsize=32)
def _bands(length: int, radius: int, start: int, stop: int, device: torch.device) -> Tensor:
    """How often a pixel of a line lies at distance 0 … R from pixel start … stop - 1: (R+1, stop - start, near)."""
    near = _near(start, stop, radius, padded(length))
    places = torch.arange(start, min(stop, length))[:, None]
    offsets = torch.arange(-radius, radius + 1)
    sources = _reflected(places + offsets, length) - near.start  # (pixels, 2R+1)
    bands = torch.zeros(radius + 1, stop - start, near.stop - near.start, dtype=torch.float64)
    index = offsets.abs().expand_as(sources), (places - start).expand_as(sources), sources
    return bands.index_put_(index, torch.ones(()).double(), accumulate=True).to(device)


def _reflected(places: Tensor, length: int) -> Tensor:
    """Places beyond the ends of a line folded back into it, as often as a short line needs."""
    if length == 1:
        return torch.zeros_like(places)
    folded = places.abs() % (2 * (length - 1))
    return torch.minimum(folded, 2 * (length - 1) - folded)
