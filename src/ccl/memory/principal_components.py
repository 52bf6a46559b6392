"""EDSR's selection: the image nearest to each principal direction."""

import torch
from torch import Tensor

from ccl.memory.selection import rounded


def principal_components(embeddings: Tensor, count: int) -> Tensor:
    """Positions of the images nearest to the principal directions, the largest first: unit rows (N, D).

    EDSR: liuhanmo321/EntropyUCL (ICDE 2024). Where more images are wanted than there are directions, these take turns.
    """
    rows = embeddings.double().cpu()  # (N, D)
    if min(count, len(rows)) <= 0:
        return torch.zeros(0, dtype=torch.long)
    centred = rows - rows.mean(dim=1, keepdim=True)  # as the authors' PCA of the transposed matrix does
    variances, directions = torch.linalg.eigh(centred.T @ centred)  # ascending: (D,), (D, D)
    is_spanned = variances > 1e-9 * variances.max()
    # Differs: a direction has no sign, so either end counts; the authors' PCA has one by convention.
    nearness = rounded((rows @ directions[:, is_spanned].flip(1)).abs())  # (N, K)
    if nearness.shape[1] == 0:
        nearness = torch.zeros(len(rows), 1, dtype=torch.double)  # every row is constant: the earliest are kept
    chosen = torch.zeros(min(count, len(rows)), dtype=torch.long)
    for turn in range(len(chosen)):  # Differs: the authors may choose an image twice and then store fewer.
        chosen[turn] = nearness[:, turn % nearness.shape[1]].argmax()
        nearness[chosen[turn]] = -1.0  # taken
    return chosen
