"""Osiris' cross-task loss: new images are contrasted with old ones only, and old ones with new ones only."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.losses.info_nce import info_nce


def cross_task_contrast(
    new_first: Tensor, new_second: Tensor, old_first: Tensor, old_second: Tensor, temperature: float
) -> Tensor:
    """InfoNCE of new views against old ones and of old views against new ones; mean of both. Osiris: arXiv 2404.19132.

    Two views of N new and M old images, (N, D) and (M, D) of any norm, N and M at least 1; all of them are trained. A
    view's positive is its partner; its negatives are all views of the other side.
    """
    new = F.normalize(torch.cat([new_first, new_second]).float(), dim=1)  # (2N, D)
    old = F.normalize(torch.cat([old_first, old_second]).float(), dim=1)  # (2M, D)
    new_partner, old_partner = new.roll(len(new_first), 0), old.roll(len(old_first), 0)
    return (info_nce(new, new_partner, old, temperature) + info_nce(old, old_partner, new, temperature)) / 2.0
