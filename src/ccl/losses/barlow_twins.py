"""The loss of Barlow Twins: every dimension agrees over the two views and is uncorrelated with the others."""

import torch
from torch import Tensor

_EPSILON = 1e-5  # batch norm's


def barlow_twins(first: Tensor, second: Tensor, off_diagonal: float = 5e-3, scale: float = 0.1) -> Tensor:
    """Squared distance of the views' cross-correlation to the identity. Barlow Twins: eq. 1 (arXiv 2103.03230).

    Raw projections (N, D) of two views; both are trained. `scale` and the defaults: solo-learn's and CaSSLe's.
    """
    correlation = _standardised(first).T @ _standardised(second) / len(first)  # (D, D)
    identity = torch.eye(len(correlation), device=correlation.device)
    weight = identity + off_diagonal * (1.0 - identity)  # (D, D)
    return scale * (weight * (correlation - identity).square()).sum()


def _standardised(rows: Tensor) -> Tensor:
    """Batch norm without affine; one row becomes zeros, where torch's batch norm would refuse it."""
    rows = rows.float()
    variance, mean = torch.var_mean(rows, dim=0, correction=0)  # (D,)
    return (rows - mean) / (variance + _EPSILON).sqrt()  # (N, D)
