"""Is an image recognised in another view? What an encoder can do with images, without labels and without groups."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_DECIMALS = 9  # similarities that differ by less are equal: rounding must not choose


def recognition(first: Tensor, second: Tensor) -> float:
    """How often the row of an image in one view is nearest, by cosine, to its own row in another, in percent.

    (N, F) of two views of the same images -> 0 to 100; 100/N for chance. A draw of m rows counts as 1/m, so features
    that have collapsed are worth no more than chance; nan for fewer than two rows, or rows that aren't finite.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"two views must have one shape (N, F), got {tuple(first.shape)} and {tuple(second.shape)}")
    if len(first) < 2 or not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return math.nan
    unit = [F.normalize(rows.detach().cpu().double(), dim=1) for rows in (first, second)]
    similarity = (unit[0] @ unit[1].T).round(decimals=_DECIMALS)  # (N, N)
    is_nearest = similarity == similarity.max(dim=1, keepdim=True).values
    return 100.0 * float((is_nearest.diagonal().double() / is_nearest.sum(dim=1)).mean())
