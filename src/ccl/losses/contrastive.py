"""Losses that tell an image's own key from other images': MoCo's, SimCLR's and InsDisc's."""

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


def instance_softmax(query: Tensor, bank: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Softmax over a bank (n, D) of unit rows, `rows` (N,) each query's own; mean over queries. InsDisc: eq. 2."""
    logits = query.float() @ bank.float().T / temperature  # (N, n)
    return F.cross_entropy(logits, rows)
