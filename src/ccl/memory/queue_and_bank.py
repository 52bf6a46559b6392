"""Buffers of embeddings: the feature queue of MoCo and the extra sample queue, and InsDisc's instance bank."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccl.seeding import generator

NOBODY = -1  # the id of a row that no image wrote


class FeatureQueue(nn.Module):
    """The last `size` keys pushed, with the ids of their images; oldest go first, any batch size.

    It starts with random unit vectors, as MoCo's does.

    >>> queue = ccl.memory.FeatureQueue(size=3, dim=1)
    >>> queue.push(torch.tensor([[1.0], [2.0]]))
    >>> queue.push(torch.tensor([[3.0], [4.0]]))
    >>> queue.vectors.flatten().tolist()  # the oldest key was overwritten
    [4.0, 2.0, 3.0]
    """

    vectors: Tensor  # (size, dim)
    ids: Tensor  # (size,)
    cursor: Tensor  # (): the row that the next key overwrites

    def __init__(self, size: int, dim: int, seed: int = 0) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs a size and a dimension of at least 1, got {size} and {dim}")
        vectors = torch.randn(size, dim, generator=generator(seed, "queue", size, dim))
        self.register_buffer("vectors", F.normalize(vectors, dim=1))
        self.register_buffer("ids", torch.full((size,), NOBODY))
        self.register_buffer("cursor", torch.tensor(0))

    @torch.no_grad()
    def push(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Take in keys (N, dim), the last row as the newest; N may be 0 or exceed the size."""
        size = len(self.vectors)
        if ids is None:
            ids = torch.full((len(keys),), NOBODY)
        keys, ids = keys[-size:], ids[-size:]
        rows = (self.cursor + torch.arange(len(keys), device=self.vectors.device)) % size
        self.vectors[rows] = keys.detach().to(self.vectors)
        self.ids[rows] = ids.to(self.ids)
        self.cursor.add_(len(keys)).remainder_(size)

    def holding(self, vectors: Tensor, ids: Tensor, cursor: Tensor) -> dict[str, Tensor]:
        """The state of this queue with the rows of another that is not longer: its oldest are overwritten last."""
        spare = len(self.vectors) - len(vectors)
        if spare <= 0:
            return {"vectors": vectors, "ids": ids, "cursor": cursor}
        by_age = (int(cursor) + torch.arange(len(vectors))) % len(vectors)  # the oldest first
        return {
            "vectors": torch.cat([vectors[by_age], self.vectors[len(vectors) :].to(vectors)]),
            "ids": torch.cat([ids[by_age], torch.full((spare,), NOBODY).to(ids)]),
            "cursor": torch.full_like(cursor, len(vectors)),
        }

    def same_image(self, ids: Tensor) -> Tensor:
        """(N, size): True where a row of the queue came from the very image."""
        return ids.to(self.ids)[:, None] == self.ids[None, :]


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
        """Hold exactly these images: rows of known ones stay, new ones start at random, others are dropped."""
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
