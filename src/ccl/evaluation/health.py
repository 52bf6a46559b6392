"""Health of embeddings without labels: their spread over the sphere, their rank, and signs of collapse."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 1024  # rows of the similarity matrix held at one time
# A convention, not calibrated: a fresh ConvNet was seen at 0.976 on noise images, so the line must lie above that.
_ONE_POINT_COSINE = 0.99
# Fewer directions than this carry no contrast between images, whatever the dimension.
_FEWEST_DIRECTIONS = 2.0


def effective_rank(embeddings: Tensor) -> float:
    """Directions in use: exp of the entropy of uncentred rows' singular values as shares (Roy & Vetterli 2007)."""
    wide = embeddings.double()
    # The squared singular values are the eigenvalues of the smaller Gram matrix, at a fraction of the cost of an SVD.
    gram = wide.T @ wide if len(wide) >= wide.shape[1] else wide @ wide.T  # (D, D) or (N, N)
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    if not singular.sum() > 0:
        return 0.0
    shares = singular / singular.sum()
    return math.exp(float(torch.special.entr(shares).sum()))


def mean_cosine(embeddings: Tensor) -> float:
    """Mean cosine similarity over all pairs of two different rows, from -1/(N-1) (spread) to 1 (one point)."""
    unit = F.normalize(embeddings.double(), dim=1)  # (N, D)
    own = float((unit**2).sum())  # N, less the rows that are zero
    return (float((unit.sum(dim=0) ** 2).sum()) - own) / (len(unit) * (len(unit) - 1))


def uniformity(embeddings: Tensor) -> float:
    """log of the mean of exp(-2 ‖x-y‖²) over pairs of different unit rows (Wang & Isola 2020, t = 2); one point: 0."""
    # Float32 rounds a squared distance by some 1e-7, and so the answer by as little, at a third of the time.
    unit = F.normalize(embeddings.double(), dim=1).float()  # (N, D)
    squared = (unit**2).sum(dim=1)  # (N,), 1 but for rows of zeros
    total = 0.0
    for start in range(0, len(unit), _CHUNK):
        here = torch.arange(start, min(start + _CHUNK, len(unit)))
        distance = torch.addmm(squared[here, None] + squared, unit[here], unit.T, alpha=-2)  # (chunk, N), squared
        distance[torch.arange(len(here)), here] = math.inf  # a row is not a pair with itself
        total += float(distance.mul_(-2).exp_().sum(dtype=torch.float64))
    return math.log(total / (len(unit) * (len(unit) - 1)))


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean of ‖x-y‖² over the pairs of unit rows of two views of the same images (Wang & Isola 2020)."""
    difference = F.normalize(first.double(), dim=1) - F.normalize(second.double(), dim=1)  # (N, D)
    return float((difference.norm(dim=1) ** 2.0).mean())


@dataclass(frozen=True)
class Health:
    """Measures of embeddings without labels; nan where the embeddings aren't finite."""

    effective_rank: float
    mean_cosine: float
    reasons: tuple[str, ...]  # why it counts as collapsed, in words; empty when it doesn't

    @property
    def is_collapsed(self) -> bool:
        return bool(self.reasons)

    @classmethod
    def of(cls, embeddings: Tensor) -> "Health":
        """Measure (N, D) with N of at least 2."""
        if len(embeddings) < 2:
            raise ValueError(f"embeddings must be (N, D) with N of at least 2, got shape {tuple(embeddings.shape)}")
        if not torch.isfinite(embeddings).all():
            return cls(math.nan, math.nan, ("the embeddings contain nan or infinity",))
        rank, cosine = effective_rank(embeddings), mean_cosine(embeddings)
        if (embeddings == 0).all():
            return cls(rank, cosine, ("all embeddings are zero",))
        reasons = []
        if cosine > _ONE_POINT_COSINE:
            reasons.append(f"all images have nearly the same embedding (mean cosine similarity {cosine:.4f})")
        if rank < _FEWEST_DIRECTIONS:
            reasons.append(f"the embeddings use only one direction (effective rank {rank:.2f})")
        return cls(rank, cosine, tuple(reasons))
