"""One embedding per image of the current step and the rehearsal memory: the class weights of InsDisc."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccl.seeding import generator


class InstanceBank(nn.Module):
    """Unit rows by image id; a row moves a share 1 − momentum towards each new embedding of its image."""

    vectors: Tensor  # (n, dim)
    ids: Tensor  # (n,), ascending

    def __init__(self, dim: int, momentum: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.momentum = momentum
        self.seed = seed
        self.register_buffer("vectors", torch.zeros(0, dim))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.ids)

    @torch.no_grad()
    def hold(self, ids: Tensor, step: int) -> None:
        """Hold exactly these images from now on: rows of known ones stay, new ones start at random, others go."""
        ids = torch.unique(ids.to(self.ids))
        fresh = torch.randn(len(ids), self.dim, generator=generator(self.seed, "bank", step)).to(self.vectors)
        vectors = F.normalize(fresh, dim=1)
        known = torch.isin(ids, self.ids)
        vectors[known] = self.vectors[self.rows(ids[known])]
        self.vectors, self.ids = vectors, ids

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these images, which must all be held: (N,)."""
        return torch.searchsorted(self.ids, ids.to(self.ids))

    @torch.no_grad()
    def update(self, rows: Tensor, embeddings: Tensor) -> None:
        """v ← normalise(m v + (1 − m) f); of an image that is there twice, the last embedding is taken."""
        places = torch.full((len(self),), -1, device=rows.device).scatter_reduce_(
            0, rows, torch.arange(len(rows), device=rows.device), "amax"
        )  # (n,): where each row of the bank is last named
        last = places[places >= 0]
        rows, embeddings = rows[last], embeddings[last]
        moved = self.momentum * self.vectors[rows] + (1.0 - self.momentum) * embeddings.to(self.vectors)
        self.vectors[rows] = F.normalize(moved, dim=1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The bank grows and shrinks with the steps: take the saved sizes before the values are copied in.
        for name in ("vectors", "ids"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.ids.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
