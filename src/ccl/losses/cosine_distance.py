"""The loss of BYOL and SimSiam, and of the distillations of CaSSLe, PFR and CLA that go through a predictor."""

import torch.nn.functional as F
from torch import Tensor


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """2 − 2cos of each prediction and its target; mean over the rows. BYOL: eq. 2 (arXiv 2006.07733).

    Rows (N, D) of any norm; no gradient reaches the target. SimSiam, PFR and CLA write −cos: half of this, less 1.
    """
    prediction, target = F.normalize(prediction.float(), dim=1), F.normalize(target.detach().float(), dim=1)  # (N, D)
    return 2.0 - 2.0 * (prediction * target).sum(dim=1).mean()
