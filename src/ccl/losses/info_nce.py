"""The contrastive loss of MoCo, and of the extra sample queue."""

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float, ignore: Tensor | None = None
) -> Tensor:
    """Tell each query's own key from the negatives; mean over the rows. Paper: eq. 1.

    All rows have unit norm. `ignore` (N, K) is True where a negative must be left out for a query.

    >>> query = torch.tensor([[1.0, 0.0]])
    >>> negatives = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    >>> loss = ccl.losses.info_nce(query, query, negatives, temperature=1.0)
    >>> round(loss.item(), 4)  # log(e + 2) - 1
    0.5514
    """
    query, positive, negatives = query.float(), positive.float(), negatives.float()
    own = (query * positive).sum(dim=1, keepdim=True)  # (N, 1)
    others = query @ negatives.T  # (N, K)
    if ignore is not None:
        others = others.masked_fill(ignore, float("-inf"))
    logits = torch.cat([own, others], dim=1) / temperature  # (N, 1+K)
    target = torch.zeros(len(logits), dtype=torch.long, device=logits.device)  # (N,): the own key stands first
    return F.cross_entropy(logits, target)
