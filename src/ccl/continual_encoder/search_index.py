"""An index over many rows of features (HNSW, by hnswlib), kept beside them and stamped with the encoder that made them.

A graph finds most of the nearest rows, not all: how many is measured against exact search when the index is built, and
kept with it. Similarities of what is found are exact.

    INDEX          the graph, as hnswlib writes it
    INDEX.json     the encoder, hashes of the features and of the graph, the breadth of the search, the recall
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.atomic_files import replacing, write_file
from ccl.continual_encoder.output_checks import check_target
from ccl.errors import require

EXACT_BELOW = 100_000  # rows; there all are compared
WANTED_RECALL = 0.95
_LINKS, _BUILD_BREADTH = 16, 200  # HNSW's M and ef_construction
_BREADTHS = (50, 100, 200, 400, 800)  # ef, the first that reaches the wanted recall
_NUM_SAMPLED, _SAMPLED_K = 200, 10
_AT_ONCE = 16384  # rows that are put into the graph

Nearest = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]  # as `searching.nearest`


@dataclass(frozen=True)
class IndexAbout:
    """What is kept of an index beside its graph."""

    about: dict[str, Any]  # of the encoder, as files of features have it
    num_rows: int
    num_features: int
    rows: str  # a hash of the features
    graph: str  # and of the graph's file
    breadth: int
    recall: float  # of the ten nearest, against exact search, for rows that were not in the graph yet


def is_available() -> bool:
    """Whether hnswlib can be imported."""
    try:
        require_index()
    except ValueError:
        return False
    return True


def require_index() -> None:
    """Refuse to search by an index without hnswlib."""
    require(["hnswlib"], "index", "a search by an index")


class SearchIndex:
    """Rows that were put into a graph."""

    def __init__(self, graph: Any, about: IndexAbout) -> None:
        self._graph, self.about = graph, about

    def nearest(self, query_rows: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As `searching.nearest`, of the rows that the index was built of; some of the nearest may be missing."""
        k = min(k, len(rows))
        self._graph.set_ef(max(self.about.breadth, k))
        places, _ = self._graph.knn_query(query_rows.float().numpy(), k=k, num_threads=1)
        found = torch.from_numpy(places.astype(np.int64)).sort(dim=1).values  # (Q, k)
        queries = F.normalize(query_rows.float(), dim=1)
        # One query at a time: all candidates of all queries could be gigabytes.
        pairs = zip(queries, found, strict=True)
        values = torch.stack([F.normalize(rows[some].float(), dim=1) @ one for one, some in pairs])  # (Q, k)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices
        return values.gather(1, order), found.gather(1, order)


def open_index(path: Path, rows: Tensor, about: Mapping[str, Any], exact: Nearest) -> tuple[SearchIndex, bool]:
    """The index kept at a path, if it is of these rows, else a new one, which is then kept; and whether it is new."""
    require_index()
    if (kept := _read(path, rows, about)) is not None:
        return kept, False
    check_target(path, (path.suffix,), "an index")  # before minutes of work
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: min(_NUM_SAMPLED, len(rows) // 2)]
    graph = _built(rows, set(drawn.tolist()))
    breadth, recall = _measured(graph, rows, drawn, exact)
    _add(graph, rows, drawn)
    with replacing(path) as unfinished:
        graph.save_index(str(unfinished))
        digest = _file_hash(unfinished)
    stamp = IndexAbout(dict(about), len(rows), rows.shape[1], _hash(rows.numpy().data), digest, breadth, recall)
    write_file(_about_path(path), json.dumps(asdict(stamp), indent=1))
    return SearchIndex(graph, stamp), True


def _built(rows: Tensor, left_out: set[int]) -> Any:
    """A graph of all rows but some: queries that are in it themselves are found too easily to measure with."""
    import hnswlib

    graph = hnswlib.Index(space="cosine", dim=rows.shape[1])
    graph.init_index(max_elements=len(rows), ef_construction=_BUILD_BREADTH, M=_LINKS, random_seed=0)
    for start in range(0, len(rows), _AT_ONCE):
        numbers = [number for number in range(start, min(start + _AT_ONCE, len(rows))) if number not in left_out]
        _add(graph, rows, torch.tensor(numbers, dtype=torch.int64))
    return graph


def _add(graph: Any, rows: Tensor, numbers: Tensor) -> None:
    if len(numbers):
        graph.add_items(rows[numbers].float().numpy(), numbers.numpy(), num_threads=torch.get_num_threads())


def _measured(graph: Any, rows: Tensor, drawn: Tensor, exact: Nearest) -> tuple[int, float]:
    """The smallest breadth that finds as many of the nearest as wanted, or the largest, and what it finds."""
    if not len(drawn):
        return _BREADTHS[-1], 1.0
    queries, left_out = rows[drawn], set(drawn.tolist())
    k = min(_SAMPLED_K, len(rows) - len(drawn))
    nearest = exact(queries, rows, k + len(drawn))[1].tolist()  # so many that k remain without those left out
    true = [set([place for place in places if place not in left_out][:k]) for places in nearest]
    breadth, recall = 0, 0.0
    for breadth in _BREADTHS:
        graph.set_ef(max(breadth, k))
        found = graph.knn_query(queries.float().numpy(), k=k, num_threads=1)[0].tolist()
        recall = float(np.mean([len(wanted.intersection(some)) / k for some, wanted in zip(found, true, strict=True)]))
        if recall >= WANTED_RECALL:
            break
    return breadth, recall


def _read(path: Path, rows: Tensor, about: Mapping[str, Any]) -> SearchIndex | None:
    """None where there is no index, or one of other rows or another encoder, or a damaged one."""
    import hnswlib

    try:
        stamp = IndexAbout(**json.loads(_about_path(path).read_text(encoding="utf-8")))
        wanted = (dict(about), len(rows), rows.shape[1], _hash(rows.numpy().data))
        # hnswlib trusts what it reads, so only the very file that was written is given to it.
        if (stamp.about, stamp.num_rows, stamp.num_features, stamp.rows) != wanted:
            return None
        if _file_hash(path) != stamp.graph:
            return None
        graph = hnswlib.Index(space="cosine", dim=stamp.num_features)
        graph.load_index(str(path), max_elements=stamp.num_rows)
        return SearchIndex(graph, stamp)
    except (OSError, ValueError, TypeError, RuntimeError):
        return None


def _about_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _hash(content: memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
