"""The loss of VICReg: views agree, every dimension varies over the batch, and no two dimensions vary together."""

import torch
import torch.nn.functional as F
from torch import Tensor

_EPSILON = 1e-4  # in the root, so that its gradient is finite where a dimension has collapsed


def vicreg(
    first: Tensor, second: Tensor, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """Invariance, variance and covariance terms, weighted and added. VICReg: arXiv 2105.04906.

    Raw projections (N, D) of two views; both are trained. A batch of one row has no variance.
    """
    first, second = first.float(), second.float()
    covariances = [_covariance(view) for view in (first, second)]
    # Differs: the VICReg authors' code halves the sum of the two hinges; solo-learn and CaSSLe, followed here, do not.
    hinges = sum(F.relu(1.0 - (matrix.diagonal() + _EPSILON).sqrt()).mean() for matrix in covariances)
    return (
        invariance * F.mse_loss(first, second)
        + variance * hinges
        + covariance * sum(_off_diagonal(matrix).square().sum() / len(matrix) for matrix in covariances)
    )


def _covariance(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(dim=0)  # (N, D)
    return centred.T @ centred / max(len(rows) - 1, 1)  # (D, D)


def _off_diagonal(matrix: Tensor) -> Tensor:
    return matrix.masked_fill(torch.eye(len(matrix), dtype=torch.bool, device=matrix.device), 0.0)
