"""Losses without negatives: cosine and squared distances, Barlow Twins, VICReg, and masked patches."""

import torch
import torch.nn.functional as F
from torch import Tensor

_NORM_EPSILON = 1e-5  # batch norm's
_PATCH_EPSILON = 1e-6  # beside the variance, so that a patch of one colour is finite
_ROOT_EPSILON = 1e-4  # so that the root's gradient is finite where a dimension has collapsed


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """2 − 2cos of each prediction and its target; mean over the rows. BYOL: eq. 2 (arXiv 2006.07733).

    Rows (N, D) of any norm; no gradient reaches the target. SimSiam, PFR and CLA write −cos: half of this, less 1.
    """
    prediction, target = F.normalize(prediction.float(), dim=1), F.normalize(target.detach().float(), dim=1)  # (N, D)
    return 2.0 - 2.0 * (prediction * target).sum(dim=1).mean()


def feature_distance(features: Tensor, stored: Tensor) -> Tensor:
    """Squared error of raw features (N, D) to stored ones; mean over rows and dimensions. DER: arXiv 2004.07211."""
    # Differs: DER stores the logits of a classifier; without labels, UCL (divyam3897/UCL) and we store features.
    return F.mse_loss(features.float(), stored.detach().float())


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
    return (rows - mean) / (variance + _NORM_EPSILON).sqrt()  # (N, D)


def vicreg(
    first: Tensor, second: Tensor, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """Invariance, variance and covariance terms of projections (N, D), weighted and added. VICReg: arXiv 2105.04906."""
    first, second = first.float(), second.float()
    covariances = [_covariance(view) for view in (first, second)]
    # Differs: the VICReg authors' code halves the sum of the two hinges; solo-learn and CaSSLe, followed here, do not.
    hinges = sum(F.relu(1.0 - (matrix.diagonal() + _ROOT_EPSILON).sqrt()).mean() for matrix in covariances)
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


def masked_patches(predicted: Tensor, patches: Tensor, is_masked: Tensor) -> Tensor:
    """Squared error to patches of zero mean and unit variance; mean over values and masked patches. arXiv 2111.06377.

    Predictions and patches (N, L, P), `is_masked` (N, L) bool with some True. No gradient reaches the patches.
    """
    targets = patches.detach().float()
    # As the authors' code has it: the unbiased variance.
    targets = (targets - targets.mean(dim=2, keepdim=True)) / (targets.var(dim=2, keepdim=True) + _PATCH_EPSILON).sqrt()
    errors = (predicted.float() - targets).square().mean(dim=2)  # (N, L)
    masked = is_masked.to(errors.dtype)
    return (errors * masked).sum() / masked.sum()
