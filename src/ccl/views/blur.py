"""Gaussian blur of a batch with a sigma for each image."""

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

_TILED_FROM, _TILE = 128, 56  # pixels of a line; measured on a CPU


def blur_radius(max_sigma: float) -> int:
    """Pixels to each side: three sigma, beyond which lies less than 0.3 % of the weight."""
    return math.ceil(3 * max_sigma)


def gaussian_blur(images: Tensor, sigmas: Tensor, radius: int) -> Tensor:
    """Images (N, 3, H, W) blurred by sigmas (N,); the border reflects, the edge pixel itself not repeated."""
    # Differs: MoCo blurs with Pillow, whose GaussianBlur is three box blurs that approximate this.
    num_images, _, height, width = images.shape
    offsets = torch.arange(radius + 1, device=images.device, dtype=torch.float64)  # (R+1,)
    # In double precision, so that the kernel can't depend on how the exponentials are vectorised.
    kernels = torch.exp(-0.5 * (offsets / sigmas.double()[:, None]) ** 2)  # (N, R+1): the right half
    kernels = kernels / (2 * kernels.sum(1, keepdim=True) - kernels[:, :1])
    if images.device.type == "cpu" and min(height, width) >= _TILED_FROM:
        return _tiled(images, kernels)
    across, down = (_band_matrices(kernels, length, 0, length) for length in (width, height))  # (N, W, W), (N, H, H)
    rows = torch.bmm(images.reshape(num_images, 3 * height, width), across.transpose(1, 2))
    return torch.matmul(down[:, None], rows.view(images.shape))


def _tiled(images: Tensor, kernels: Tensor) -> Tensor:
    """The same sums without the zeros away from the bands: a tile of pixels needs its neighbours only."""
    num_images, _, height, width = images.shape
    lines = images.reshape(num_images, 3 * height, width)
    rows, out = torch.empty_like(lines), torch.empty_like(images)
    across = _tiles(kernels, width)
    for here, near, band in across:
        torch.bmm(lines[:, :, near], band.transpose(1, 2), out=rows[:, :, here])
    planes = rows.view(images.shape)
    for here, near, band in across if height == width else _tiles(kernels, height):
        for channel in range(3):
            torch.bmm(band, planes[:, channel, near], out=out[:, channel, here])
    return out


def _tiles(kernels: Tensor, length: int) -> list[tuple[slice, slice, Tensor]]:
    """Pixels of a line in pieces; for each piece the pixels that the blur takes it from, and its band matrices."""
    radius = kernels.shape[1] - 1
    edges = [*range(0, length, _TILE), length]
    return [
        (
            slice(start, end),
            slice(max(start - radius, 0), min(end + radius, length)),
            _band_matrices(kernels, length, start, end),
        )
        for start, end in pairwise(edges)
    ]


def _band_matrices(kernels: Tensor, length: int, start: int, stop: int) -> Tensor:
    """The blur of pixels start … stop - 1 of a line as a matrix for each right half of a kernel: (N, pixels, near)."""
    # Matrices rather than a grouped convolution: 3 times as fast on a CPU at 32 px (at 224 px it depends on the block).
    bands = _bands(length, kernels.shape[1] - 1, start, stop, kernels.device)
    return torch.mm(kernels, bands.flatten(1)).float().view(len(kernels), *bands.shape[1:])


@lru_cache(maxsize=32)
def _bands(length: int, radius: int, start: int, stop: int, device: torch.device) -> Tensor:
    """How often a pixel of a line lies at distance 0 … R from pixel start … stop - 1: (R+1, stop - start, near)."""
    first, last = max(start - radius, 0), min(stop + radius, length)
    places = torch.arange(start, stop)[:, None]
    offsets = torch.arange(-radius, radius + 1)
    sources = _reflected(places + offsets, length) - first  # (stop - start, 2R+1)
    bands = torch.zeros(radius + 1, stop - start, last - first, dtype=torch.float64)
    index = offsets.abs().expand_as(sources), (places - start).expand_as(sources), sources
    return bands.index_put_(index, torch.ones(()).double(), accumulate=True).to(device)


def _reflected(places: Tensor, length: int) -> Tensor:
    """Places beyond the ends of a line folded back into it, as often as a short line needs."""
    if length == 1:
        return torch.zeros_like(places)
    folded = places.abs() % (2 * (length - 1))
    return torch.minimum(folded, 2 * (length - 1) - folded)
