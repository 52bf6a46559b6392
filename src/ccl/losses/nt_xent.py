"""The contrastive loss of SimCLR."""

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Tell each view's partner from all other views of the batch; mean over the 2N views. SimCLR: eq. 1.

    Row n of `first` and row n of `second` are two views of one image, of unit norm.

    >>> views = torch.eye(2)  # two images, each with two equal views
    >>> round(ccl.losses.nt_xent(views, views, temperature=1.0).item(), 4)  # log(e + 2) - 1
    0.5514
    """
    views = torch.cat([first, second]).float()  # (2N, D)
    logits = views @ views.T / temperature  # (2N, 2N)
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    logits = logits.masked_fill(itself, float("-inf"))
    partner = torch.arange(len(views), device=views.device).roll(len(first))  # (2N,): n <-> n + N
    return F.cross_entropy(logits, partner)
