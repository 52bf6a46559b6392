"""CaSSLe's contrastive distillation: a prediction finds its own past embedding among all of the batch, and back."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_info_nce(predicted: Tensor, target: Tensor, temperature: float) -> Tensor:
    """InfoNCE from predictions to targets and back; mean of both. CaSSLe: DonkeyShot21/cassle (arXiv 2112.04215).

    Row n of `predicted` belongs to row n of `target`, both (M, D) of any norm. CaSSLe stacks the two views, M = 2N, and
    the other view of the same image is a negative. No gradient reaches the target.
    """
    predicted, target = F.normalize(predicted.float(), dim=1), F.normalize(target.detach().float(), dim=1)  # (M, D)
    return symmetric_cross_entropy(predicted @ target.T / temperature)  # (M, M)


def symmetric_cross_entropy(logits: Tensor) -> Tensor:
    """Cross-entropy of a square matrix to the identity; mean over its rows and its columns."""
    own = torch.arange(len(logits), device=logits.device)  # (M,)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2.0
