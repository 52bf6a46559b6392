"""Which images are nearest to a query: cosine similarity of features, all compared with all, or by an index."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.continual_encoder.contact_sheet import Answer, SheetImage
from ccl.continual_encoder.feature_files import read_features
from ccl.continual_encoder.feature_parts import read_parts
from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.continual_encoder.search_index import EXACT_BELOW, Nearest, is_available, open_index
from ccl.errors import how_to_install

_QUERIES, _ROWS = 256, 16384  # compared at one time: 16 MB of similarities
_RANKED = 2000  # rows whose pairs, two million, a similarity is ranked among


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


@dataclass(frozen=True)
class Collection:
    """Images with their features, and where each one's file is to be had.

    >>> photos = ccl.Collection(torch.eye(3), ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> photos.shown(1).name
    'b.jpg'
    """

    rows: Tensor  # (N, F)
    names: Sequence[str]
    content: Callable[[int], bytes | None]  # of the image at a position; None where it is gone
    about: Mapping[str, Any] = field(default_factory=dict)  # of the encoder, where the features were read from a file

    def shown(self, position: int) -> SheetImage:
        return SheetImage(self.names[position], self.content(position))


def stored_collection(path: str | Path, frozen: FrozenEncoder) -> Collection:
    """What a file or folder of features holds, if this encoder made it; the images are looked for at their paths.

    >>> encoder, photos = ccl.frozen("my-encoder"), ccl.load_dataset("symbols", images_per_class=1).train
    >>> names = [f"{number}.png" for number in range(len(photos))]
    >>> ccl.write_features("photos.npz", encoder.features(photos), names, encoder.version, encoder.description)
    >>> len(ccl.stored_collection("photos.npz", encoder).names)
    10
    """
    path = Path(path)
    stored = read_parts(path) if path.is_dir() else read_features(path)
    frozen.refuse_other(stored.about, str(path), "make it again with ccl encode, or choose its --version")
    return Collection(stored.rows, stored.names, lambda position: _content(stored.names[position]), stored.about)


def chosen_search(by: str, path: Path, images: Collection) -> tuple[Nearest, str]:
    """How a file or folder of features is searched, and a line about it; by: auto, exact or index.

    auto: all rows are compared below 100,000 of them, else an index is used where hnswlib is there.
    """
    num_rows = len(images.rows)
    if by == "exact" or (by == "auto" and num_rows < EXACT_BELOW):
        return nearest, ""
    if by == "auto" and not is_available():
        return nearest, f"all {num_rows:,} rows are compared; for a faster search, {how_to_install('index')}"
    place = path / "index.hnsw" if path.is_dir() else path.with_name(f"{path.name}.hnsw")
    index, is_new = open_index(place, images.rows, images.about, nearest)
    made = "made and kept" if is_new else "kept"
    return index.nearest, f"by an index, {made} in {place}: it finds {index.about.recall:.1%} of the ten nearest"


def _content(name: str) -> bytes | None:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError):  # gone, or a name that no file can have
        return None


def find(queries: Collection, images: Collection, k: int, search: Nearest = nearest) -> list[Answer]:
    """The k images most like each query, best first, with what a sheet needs to show them.

    >>> rows = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> photos = ccl.Collection(rows, ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> query = ccl.Collection(rows[:1], ["query.jpg"], content=lambda position: None)
    >>> [answer] = ccl.find_similar(query, photos, k=2)
    >>> [(image.name, round(similarity, 3)) for image, similarity in answer.hits]
    [('a.jpg', 1.0), ('b.jpg', 0.8)]
    """
    similarities, positions = search(queries.rows, images.rows, k)
    ranks = pair_ranks(similarities, images.rows)
    answers = []
    for number, (values, places) in enumerate(zip(similarities.tolist(), positions.tolist(), strict=True)):
        hits = tuple((images.shown(place), value) for place, value in zip(places, values, strict=True))
        answers.append(Answer(queries.shown(number), hits, () if ranks is None else tuple(ranks[number].tolist())))
    return answers


def pair_ranks(similarities: Tensor, rows: Tensor) -> Tensor | None:
    """The share of all pairs of different rows (N, F) that are less alike than each similarity; None without pairs.

    Of more than 2,000 rows, so many at even distances stand for all.
    """
    if len(rows) > _RANKED:
        rows = rows[torch.linspace(0, len(rows) - 1, _RANKED).round().long()]
    if len(rows) < 2:
        return None
    unit = F.normalize(rows.float(), dim=1)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    pairs = (unit @ unit.T)[first, second].sort().values  # (N(N-1)/2,)
    return torch.searchsorted(pairs, similarities.contiguous()).double() / len(pairs)
