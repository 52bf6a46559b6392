"""Gaussian blur of a batch with a sigma for each image."""

import math

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
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=torch.float64)  # (2R+1,)
    # In double precision, so that the kernel can't depend on how the exponentials are vectorised.
    kernels = torch.exp(-0.5 * (offsets / sigmas.double()[:, None]) ** 2)  # (N, 2R+1)
    kernels = (kernels / kernels.sum(1, keepdim=True)).float()
    across, down = _band_matrices(kernels, width), _band_matrices(kernels, height)  # (N, W, W), (N, H, H)
    if images.device.type == "cpu" and min(height, width) >= _TILED_FROM:
        return _tiled(images, across, down, radius)
    rows = torch.bmm(images.reshape(num_images, 3 * height, width), across.transpose(1, 2))
    return torch.matmul(down[:, None], rows.view(images.shape))


def _tiled(images: Tensor, across: Tensor, down: Tensor, radius: int) -> Tensor:
    """The same sums without the zeros away from the bands: a tile of pixels needs its neighbours only."""
    num_images, _, height, width = images.shape
    lines = images.reshape(num_images, 3 * height, width)
    rows, out = torch.empty_like(lines), torch.empty_like(images)
    for here, near in _tiles(width, radius):
        rows[:, :, here] = torch.bmm(lines[:, :, near], across[:, here, near].transpose(1, 2))
    planes = rows.view(images.shape)
    for here, near in _tiles(height, radius):
        for channel in range(3):
            out[:, channel, here] = torch.bmm(down[:, here, near], planes[:, channel, near])
    return out


def _tiles(length: int, radius: int) -> list[tuple[slice, slice]]:
    """Pixels of a line in pieces, and for each piece the pixels that the blur takes it from."""
    starts = range(0, length, _TILE)
    ends = [min(start + _TILE, length) for start in starts]
    return [
        (slice(start, end), slice(max(start - radius, 0), min(end + radius, length)))
        for start, end in zip(starts, ends, strict=True)
    ]


def _band_matrices(kernels: Tensor, length: int) -> Tensor:
    """The blur of a line as a matrix for each kernel: (N, 2R+1) -> (N, L, L), row = pixel of the result."""
    # Matrices rather than a grouped convolution: 3 times as fast on a CPU at 32 px (at 224 px it depends on the block).
    radius = kernels.shape[1] // 2
    places = torch.arange(length, device=kernels.device)
    sources = places[:, None] + torch.arange(-radius, radius + 1, device=kernels.device)  # (L, 2R+1)
    sources = _reflected(sources, length)
    matrices = kernels.new_zeros(len(kernels), length, length)
    for tap, kernel in enumerate(kernels.unbind(1)):  # one tap at a time, because reflection may hit a pixel twice
        matrices[:, places, sources[:, tap]] += kernel[:, None]
    return matrices


def _reflected(places: Tensor, length: int) -> Tensor:
    """Places beyond the ends of a line folded back into it, as often as a short line needs."""
    if length == 1:
        return torch.zeros_like(places)
    folded = places.abs() % (2 * (length - 1))
    return torch.minimum(folded, 2 * (length - 1) - folded)
