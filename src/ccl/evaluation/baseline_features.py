"""Baseline features without learning, of uint8 images (N, 3, S, S): raw pixels, and histograms of gradients."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.data import ImageSource, squared

SIDE = 48  # pixels to which images are brought
THUMBNAIL = 16  # pixels of a thumbnail
_CELL, _NUM_ANGLES, _CLIP = 8, 9, 0.2  # Dalal & Triggs 2005
_CHUNK = 1024  # images that are held as floats at one time


def pixel_features(source: ImageSource) -> dict[str, Tensor]:
    """ "pixels" and "hog" of all images, (N, ·) each; the source may not be empty."""
    found: dict[str, list[Tensor]] = {"pixels": [], "hog": []}
    for chunk in torch.split(torch.arange(len(source)), _CHUNK):
        images = squared(source.subset(chunk), SIDE).read(torch.arange(len(chunk)))  # (n, 3, SIDE, SIDE)
        found["pixels"].append(thumbnails(images))
        found["hog"].append(hog_with_colours(images))
    return {name: torch.cat(rows) for name, rows in found.items()}


def thumbnails(images: Tensor) -> Tensor:
    """The pixels themselves at 16×16, anti-aliased, in [0, 1]: (N, 768)."""
    return F.adaptive_avg_pool2d(images.float() / 255, THUMBNAIL).flatten(1)


def hog_with_colours(images: Tensor) -> Tensor:
    """Histograms of gradients (Dalal & Triggs 2005) and the mean colour of each cell: (N, 36·(c-1)² + 3·c²), c = S/8.

    Unsigned angles in 9 bins, shared by the nearest two; of the three channels the steepest; blocks of 2×2 cells,
    normalised, clipped at 0.2 and normalised again. Differs: pixels count for their own cell only.
    """
    values = images.float() / 255  # (N, 3, S, S)
    around = F.pad(values, (1, 1, 1, 1), mode="replicate")
    right, down = around[:, :, 1:-1, 2:] - around[:, :, 1:-1, :-2], around[:, :, 2:, 1:-1] - around[:, :, :-2, 1:-1]
    length, steepest = (right**2 + down**2).sqrt().max(dim=1, keepdim=True)  # (N, 1, S, S)
    angle = torch.atan2(down.gather(1, steepest), right.gather(1, steepest)) % math.pi
    place = angle * (_NUM_ANGLES / math.pi)  # 0 … 9; the bins' centres are whole numbers
    lower = place.floor()
    share = place - lower
    votes = torch.zeros(len(images), _NUM_ANGLES, *images.shape[2:])
    votes.scatter_add_(1, lower.long() % _NUM_ANGLES, length * (1 - share))
    votes.scatter_add_(1, (lower.long() + 1) % _NUM_ANGLES, length * share)
    cells = F.avg_pool2d(votes, _CELL)  # (N, 9, c, c)
    blocks = F.unfold(cells, 2)  # (N, 36, (c-1)²)
    blocks = (blocks / _norm(blocks)).clamp(max=_CLIP)
    return torch.cat([(blocks / _norm(blocks)).flatten(1), F.avg_pool2d(values, _CELL).flatten(1)], dim=1)


def _norm(blocks: Tensor) -> Tensor:
    return (blocks**2).sum(dim=1, keepdim=True).add(1e-6).sqrt()  # blocks without any gradient stay zero
