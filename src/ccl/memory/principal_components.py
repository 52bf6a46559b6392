"""EDSR's selection: the image nearest to each principal direction."""

import torch
from torch import Tensor

from ccl.memory.selection import rounded


def principal_components(embeddings: Tensor, count: int) -> Tensor:
    """Positions, ascending, of the images nearest to the principal directions, the largest first: unit rows (N, D).

    EDSR: liuhanmo321/EntropyUCL (ICDE 2024). Where more images are wanted than there are directions, these take turns.
    """
    rows = embeddings.double().cpu()  # (N, D)
    if count >= len(rows):
        return torch.arange(len(rows))
    centred = rows - rows.mean(dim=1, keepdim=True)  # as the authors' PCA of the transposed matrix does
    variances, directions = torch.linalg.eigh(centred.T @ centred)  # ascending: (D,), (D, D)
    is_spanned = variances > 1e-9 * variances.max()
    # Differs: a direction has no sign, so either end counts; the authors' PCA has one by convention.
    nearness = rounded((rows @ directions[:, is_spanned].flip(1)).abs())  # (N, K)
    if nearness.shape[1] == 0:
        nearness = torch.zeros(len(rows), 1, dtype=torch.double)  # every row is constant: the earliest are kept
    for turn in range(count):  # Differs: the authors may choose an image twice and then store fewer.
        nearness[nearness[:, turn % nearness.shape[1]].argmax()] = -1.0  # taken
    return torch.nonzero(nearness[:, 0] < 0).flatten()
