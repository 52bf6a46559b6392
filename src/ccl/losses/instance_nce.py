"""The losses of InsDisc: every image is a class of its own, and its class weight is its row of the instance bank."""

import math

import torch.nn.functional as F
from torch import Tensor


def instance_nce(
    query: Tensor, own: Tensor, noise: Tensor, temperature: float, normaliser: float, num_instances: int
) -> Tensor:
    """Noise-contrastive estimate of the instance softmax; mean over the rows. InsDisc: eqs. 4–7.

    `own` (N, D) are the queries' bank rows, `noise` (N, M, D) rows drawn uniformly from all `num_instances`, and
    `normaliser` is the constant Z. With h = p / (p + M/n) and p = exp(s/τ)/Z, log h = log σ(s/τ − log Z − log(M/n)).
    """
    query, own, noise = query.float(), own.float(), noise.float()
    odds = math.log(normaliser) + math.log(noise.shape[1] / num_instances)
    is_data = F.logsigmoid((query * own).sum(dim=1) / temperature - odds)  # (N,)
    similarity = (noise @ query.unsqueeze(2)).squeeze(2)  # (N, M)
    is_noise = F.logsigmoid(odds - similarity / temperature).sum(dim=1)  # (N,)
    return -(is_data + is_noise).mean()


def instance_softmax(query: Tensor, bank: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """The exact instance softmax over the whole bank; mean over the queries. InsDisc: eq. 2.

    `bank` (n, D) has unit rows; `rows` (N,) says which of them is each query's own.
    """
    logits = query.float() @ bank.float().T / temperature  # (N, n)
    return F.cross_entropy(logits, rows)
