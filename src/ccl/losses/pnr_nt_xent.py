"""PNR for SimCLR: present and past embeddings are negatives of both the contrast and the distillation."""

import torch
import torch.nn.functional as F
from torch import Tensor


def pnr_nt_xent(
    first: Tensor,
    second: Tensor,
    predicted_first: Tensor,
    predicted_second: Tensor,
    old_first: Tensor,
    old_second: Tensor,
    temperature: float,
) -> Tensor:
    """NT-Xent with past negatives plus a distillation with present ones, means over 2N views. PNR: csm9493/PNR.

    Two views (N, D) each, of any norm: present projections, what a predictor makes of them, and the frozen network's
    projections, which no gradient reaches. It replaces `nt_xent`.
    """
    present = F.normalize(torch.cat([first, second]).float(), dim=1)  # (2N, D)
    predicted = F.normalize(torch.cat([predicted_first, predicted_second]).float(), dim=1)  # (2N, D)
    old = F.normalize(torch.cat([old_first, old_second]).detach().float(), dim=1)  # (2N, D)
    candidates = torch.cat([present, old])  # (4N, D)
    itself = torch.eye(len(present), dtype=torch.bool, device=present.device).repeat(1, 2)  # (2N, 4N)
    partner = torch.arange(len(present), device=present.device).roll(len(first))  # (2N,): n <-> n + N
    contrast = F.cross_entropy((present @ candidates.T / temperature).masked_fill(itself, float("-inf")), partner)
    # As the authors' code: the positive, a view's own past embedding, is masked out of the denominator too, so that
    # this term has no lower limit at 0.
    others = (predicted @ candidates.T / temperature).masked_fill(itself, float("-inf")).logsumexp(dim=1)  # (2N,)
    own = (predicted * old).sum(dim=1) / temperature  # (2N,)
    return contrast + (others - own).mean()
