"""A first-in, first-out buffer of embeddings: MoCo's queue, and the extra sample queue."""

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
