"""Which images are nearest to a query: cosine similarity of features, all compared with all in pieces."""

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERIES, _ROWS = 256, 16384  # compared at one time: 16 MB of similarities


def nearest(query_rows: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar of rows (N, F) for each of (Q, F): similarities and positions, (Q, k) each, best first.

    With fewer than k rows all of them; of equally similar ones the first comes first.
    """
    if query_rows.ndim != 2 or rows.ndim != 2 or query_rows.shape[1] != rows.shape[1]:
        raise ValueError(f"rows must be (Q, F) and (N, F), got {tuple(query_rows.shape)} and {tuple(rows.shape)}")
    if k < 1 or not len(rows) or not len(query_rows):
        raise ValueError("a search needs a query, something to search in, and k of at least 1")
    found = [_nearest(queries, rows, k) for queries in torch.split(query_rows, _QUERIES)]
    return torch.cat([similarity for similarity, _ in found]), torch.cat([position for _, position in found])


def _nearest(queries: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    queries = F.normalize(queries.float(), dim=1)
    best = queries.new_empty(len(queries), 0)  # (Q, up to k)
    places = torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(rows), _ROWS):
        part = F.normalize(rows[start : start + _ROWS].float(), dim=1)  # (n, F)
        numbers = torch.arange(start, start + len(part)).expand(len(queries), -1)
        best, places = torch.cat([best, queries @ part.T], dim=1), torch.cat([places, numbers], dim=1)
        order = torch.sort(best, dim=1, descending=True, stable=True).indices[:, :k]
        best, places = best.gather(1, order), places.gather(1, order)
    return best, places
