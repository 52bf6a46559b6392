"""Gaussian blur of a batch with a sigma for each image."""

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from ccl.views.batched_matmul import canvas, padded, products, products_from_left

_TILED_FROM, _TILE = 128, 56  # pixels of a line; measured on a CPU


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
    if images.device.type == "cpu" and min(height, width) >= _TILED_FROM:
        return _tiled(floats, kernels, height, width)[:, :, :height, :width]
    across, down = (
        _band_matrices(kernels, length, 0, padded(length)) for length in (width, height)
    )  # (N, W', W'), (N, H', H')
    rows = products(floats.flatten(1, 2), across.transpose(1, 2))  # (N, 3H', W')
    return products_from_left(down, rows.view(floats.shape))[:, :, :height, :width]


def _tiled(images: Tensor, kernels: Tensor, height: int, width: int) -> Tensor:
    """The same sums without the zeros away from the bands: a tile of pixels needs its neighbours only."""
    across = _tiles(kernels, width)
    down = across if height == width else _tiles(kernels, height)
    out, planes = torch.empty_like(images), torch.empty_like(images[0])  # (N, 3, H', W'), (3, H', W')
    # One by one, because torch multiplies a batch by another function than a single image.
    for number, image in enumerate(images):
        for here, near, bands in across:
            torch.mm(image.flatten(0, 1)[:, near], bands[number].t(), out=planes.flatten(0, 1)[:, here])
        for here, near, bands in down:
            for channel in range(3):
                torch.mm(bands[number], planes[channel, near], out=out[number, channel, here])
    return out


def _tiles(kernels: Tensor, length: int) -> list[tuple[slice, slice, Tensor]]:
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
    """How often a pixel of a line lies at distance 0 … R from pixel start … stop - 1: (R+1, stop - start, near).

    Pixels beyond the length lie near none.
    """
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
