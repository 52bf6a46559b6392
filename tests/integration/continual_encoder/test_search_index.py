"""Searching by an index: its recall, what it is stamped with, and when it is used."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ccl.continual_encoder import search_index, searching
from ccl.continual_encoder.search_index import open_index
from ccl.continual_encoder.searching import Collection, chosen_search, nearest
from ccl.errors import UserError

Command = Callable[..., tuple[int, str, str]]
ABOUT = {"version": 3, "fingerprint": "abc"}


@pytest.fixture
def rows() -> Tensor:
    pytest.importorskip("hnswlib")
    return torch.randn(1000, 16, generator=torch.Generator().manual_seed(1))


def test_an_index_finds_what_exact_search_does(rows: Tensor, tmp_path: Path) -> None:
    index, is_new = open_index(tmp_path / "x.hnsw", rows, ABOUT, nearest)
    assert is_new
    queries = torch.randn(50, 16, generator=torch.Generator().manual_seed(2))
    values, places = index.nearest(queries, rows, 10)
    true_values, true_places = nearest(queries, rows, 10)
    shared = [len(set(a) & set(b)) for a, b in zip(places.tolist(), true_places.tolist(), strict=True)]
    assert sum(shared) >= 0.95 * 500
    assert index.about.recall >= 0.95
    complete = [number for number, count in enumerate(shared) if count == 10]
    assert torch.allclose(values[complete], true_values[complete], rtol=0, atol=1e-6)
    assert torch.equal(places[complete], true_places[complete])
    again, is_new = open_index(tmp_path / "x.hnsw", rows, ABOUT, nearest)
    assert not is_new
    assert torch.equal(again.nearest(queries, rows, 10)[1], places)
    assert index.nearest(queries[:1], rows, 5000)[1].shape == (1, 1000)  # no more than there are


def test_an_index_of_other_rows_another_encoder_or_damaged_is_made_anew(rows: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "x.hnsw"
    open_index(path, rows, ABOUT, nearest)
    assert open_index(path, rows + 1, ABOUT, nearest)[1]
    assert open_index(path, rows + 1, ABOUT | {"fingerprint": "other"}, nearest)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    assert open_index(path, rows + 1, ABOUT | {"fingerprint": "other"}, nearest)[1]
    (tmp_path / "x.hnsw.json").write_text(json.dumps({"about": {}}))
    assert open_index(path, rows, ABOUT, nearest)[1]


def test_exact_search_is_the_default_for_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Collection(torch.eye(3), ("a", "b", "c"), lambda position: None, ABOUT)
    assert chosen_search("auto", tmp_path / "f.npz", few) == (nearest, "")
    monkeypatch.setattr(searching, "EXACT_BELOW", 3)
    monkeypatch.setattr(searching, "is_available", lambda: False)
    search, line = chosen_search("auto", tmp_path / "f.npz", few)
    assert search is nearest
    assert "pip install '.[index]'" in line
    assert chosen_search("exact", tmp_path / "f.npz", few) == (nearest, "")
    assert list(tmp_path.iterdir()) == []


def test_many_rows_are_searched_by_an_index_beside_them(
    rows: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Collection(rows, [str(number) for number in range(1000)], lambda position: None, ABOUT)
    monkeypatch.setattr(searching, "EXACT_BELOW", 1000)
    search, line = chosen_search("auto", tmp_path / "f.npz", many)
    assert "made and kept in" in line
    assert (tmp_path / "f.npz.hnsw").is_file()
    assert search(rows[:5], rows, 1)[1].flatten().tolist() == [0, 1, 2, 3, 4]
    chosen_search("index", tmp_path, many)
    assert (tmp_path / "index.hnsw").is_file()


def test_a_missing_package_and_a_wrong_word_are_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    with pytest.raises(UserError, match=r"needs hnswlib, .* pip install '.\[index\]'"):
        search_index.require_index()
    assert not search_index.is_available()
    search = ["search", tmp_path, tmp_path, "-f", tmp_path / "f.npz", "-o", tmp_path / "s.html", "--by"]
    assert "it is auto, exact or index" in command(*search, "graph")[2]
    assert "pip install '.[index]'" in command(*search, "index")[2]
