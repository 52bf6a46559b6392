"""The squared error to stored or frozen features: DER, CLA's other distance, and CaSSLe's distillation of VICReg."""

import torch.nn.functional as F
from torch import Tensor


def feature_distance(features: Tensor, stored: Tensor) -> Tensor:
    """Squared error of features (N, D); mean over rows and dimensions. DER: arXiv 2004.07211.

    Raw rows, not of unit norm. No gradient reaches the stored ones.
    """
    # Differs: DER stores the logits of a classifier; without labels, UCL (divyam3897/UCL) and we store features.
    return F.mse_loss(features.float(), stored.detach().float())
