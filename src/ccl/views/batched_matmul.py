"""Matrix products, one for each image of a batch, whose bits do not depend on the batch.

A matrix library chooses its code, and with it the order of its sums, by the shape of a matrix, by where the matrix
starts in a cache line and by whether it is alone. So here all matrices of a product have one shape, each starts a cache
line, and none is alone: with sides of a multiple of 4 floats, a matrix is a multiple of the 64 bytes of a line.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_MULTIPLE = 4  # its square is 16 floats


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
