"""The predictor: a small trained network from present embeddings to past ones."""

import torch.nn.functional as F
from torch import Tensor, nn

from ccl.seeding import seeded


class Predictor(nn.Module):
    """Linear, batch norm, ReLU, linear: rows (N, D) to rows (N, D). CaSSLe and PFR: g; CLA: the aligner.

    It sees the whole of a batch, whichever rows a loss then takes, so that its statistics are those of the batch.
    With a `shortcut` these layers are what is added to a row, at first nothing: it begins as the identity.
    """

    def __init__(self, dim: int, hidden: int, shortcut: bool = False) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.first = nn.Linear(dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)  # split in groups where the encoder's are
        self.last = nn.Linear(hidden, dim)
        self._begin()

    def forward(self, rows: Tensor) -> Tensor:
        wide: Tensor = self.first(rows)  # (N, hidden)
        num_groups = getattr(self.norm, "num_groups", 1)
        # One row to a group has no statistics of its own: such a small batch is normalised with the running ones.
        normed = self.norm(wide) if len(rows) >= 2 * num_groups or not self.training else self._evaluated(wide)
        predicted: Tensor = self.last(F.relu(normed))
        return rows + predicted if self.shortcut else predicted

    def _evaluated(self, wide: Tensor) -> Tensor:
        norm = self.norm
        return F.batch_norm(wide, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)

    def restart(self, *context: int | str) -> None:
        """Begin anew with weights that are a pure function of the context."""
        with seeded(*context):
            for layer in (self.first, self.norm, self.last):
                layer.reset_parameters()
        self._begin()

    def _begin(self) -> None:
        if self.shortcut:
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)
