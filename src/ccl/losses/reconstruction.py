"""The loss of masked autoencoders: patches that were not shown are predicted, each relative to its own values."""

from torch import Tensor

_EPSILON = 1e-6  # beside the variance, so that a patch of one colour is finite


def masked_patches(predicted: Tensor, patches: Tensor, is_masked: Tensor) -> Tensor:
    """Squared error to patches of zero mean and unit variance; mean over values and masked patches. arXiv 2111.06377.

    Predictions and patches (N, L, P), `is_masked` (N, L) bool with some True. No gradient reaches the patches.
    """
    targets = patches.detach().float()
    # As the authors' code has it: the unbiased variance.
    targets = (targets - targets.mean(dim=2, keepdim=True)) / (targets.var(dim=2, keepdim=True) + _EPSILON).sqrt()
    errors = (predicted.float() - targets).square().mean(dim=2)  # (N, L)
    masked = is_masked.to(errors.dtype)
    return (errors * masked).sum() / masked.sum()
