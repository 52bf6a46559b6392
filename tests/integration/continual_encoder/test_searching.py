"""Search against plain NumPy, and the sheet of what it found: whole, escaped, asking nobody for anything."""

import base64
import html
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccl import FrozenEncoder
from ccl.continual_encoder import searching
from ccl.continual_encoder.feature_files import write_features
from ccl.continual_encoder.searching import (
    Answer,
    Collection,
    SheetImage,
    check_sheet_size,
    find_similar,
    nearest,
    rank_in_words,
    stored_collection,
    write_sheet,
)
from ccl.data import FileSource
from ccl.errors import UserError

MakeFrozen = Callable[..., FrozenEncoder]


def test_nearest_is_what_numpy_finds_in_whatever_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    queries, rows = draws.normal(size=(7, 5)), draws.normal(size=(101, 5)) * draws.uniform(0.1, 10, (101, 1))
    cosine = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (rows / np.linalg.norm(rows, axis=1)[:, None]).T
    order = np.argsort(-cosine, axis=1)[:, :6]
    for num_queries, num_rows in [(256, 16384), (3, 10), (1, 1)]:
        monkeypatch.setattr(searching, "_QUERIES", num_queries)
        monkeypatch.setattr(searching, "_ROWS", num_rows)
        similarity, places = nearest(torch.tensor(queries).float(), torch.tensor(rows).float(), 6)
        assert np.array_equal(places.numpy(), order)
        assert np.allclose(similarity.numpy(), np.take_along_axis(cosine, order, 1), atol=1e-6)


def test_a_similarity_is_ranked_among_all_pairs_of_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    unit = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
    pairs = [float(unit[a] @ unit[b]) for a in range(30) for b in range(a)]
    values = torch.tensor([[0.0, 0.5], [0.9, 1.1]])
    expected = [[np.mean([pair < value for pair in pairs]) for value in line] for line in values.tolist()]
    found = searching.pair_ranks(values, rows)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)
    monkeypatch.setattr(searching, "_RANKED", 12)  # some stand for all
    some = searching.pair_ranks(values, rows)
    assert abs(float(some[0, 0]) - expected[0][0]) < 0.2
    assert searching.pair_ranks(values, rows[:1]) is None


def test_ranks_are_rounded_down() -> None:
    assert [rank_in_words(rank) for rank in (1.0, 0.99999, 0.998, 0.0)] == [
        "nearer than all pairs",
        "nearer than 99.9 % of pairs",
        "nearer than 99.8 % of pairs",
        "nearer than 0.0 % of pairs",
    ]


def test_equals_come_in_their_order_and_k_may_exceed_what_there_is() -> None:
    similarity, places = nearest(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 0.0]]), 9)
    assert places.tolist() == [[1, 2, 0]]
    assert similarity.tolist() == [[1.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="needs a query"):
        nearest(torch.zeros(1, 2), torch.zeros(0, 2), 1)
    with pytest.raises(ValueError, match=r"\(Q, F\)"):
        nearest(torch.zeros(1, 3), torch.zeros(4, 2), 1)


def test_stored_features_serve_as_the_images_do_and_only_their_own_encoder(
    make_frozen: MakeFrozen, labelled: Path, tmp_path: Path
) -> None:
    frozen = make_frozen()
    names = [str(path) for path in sorted(labelled.rglob("*.png"))]
    source = FileSource(names)
    rows = frozen.features(source)
    write_features(tmp_path / "f.npz", rows, names, 3, frozen.description)
    fresh = Collection(rows, names, source.encoded)
    stored = stored_collection(tmp_path / "f.npz", frozen)
    assert find_similar(fresh, stored, 4) == find_similar(fresh, fresh, 4)
    answer = find_similar(fresh, stored, 4)[12]
    assert answer.hits[0][0].name == answer.query.name == names[12]
    assert all("kiwi" in image.name for image, _ in answer.hits)
    Path(names[12]).unlink()
    assert find_similar(Collection(rows, names, lambda _: None), stored, 1)[12].hits[0][0].content is None
    with pytest.raises(UserError, match=r"of another encoder.*ccl encode"):
        stored_collection(tmp_path / "f.npz", make_frozen(seed=5))


def png(colour: str, side: int = 20) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, format="PNG")
    return file.getvalue()


HOSTILE = "<script>alert(1)</script>\"' &.png"


def answers() -> list[Answer]:
    hits = (
        (SheetImage("red.png", png("red")), 0.98765),
        (SheetImage(HOSTILE, png("blue", 700)), 0.5),
        (SheetImage("gone", None), 0.1),
    )
    return [
        Answer(SheetImage("query-\udcff.png", png("green")), hits),
        Answer(SheetImage("second", b"no image"), hits[:1]),
    ]


def test_the_page_escapes_names_and_needs_nothing_else(tmp_path: Path) -> None:
    write_sheet(tmp_path / "s.html", answers(), f"Most like {HOSTILE}")
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1  # the page's own
    assert html.escape("<script>alert(1)</script>") in page
    assert page.count("0.988") == 2
    assert page.count("not found") == 2  # the file that is gone, and the one that is no image
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"(?!data:)|url\(|@import|https?://", page)
    assert "prefers-color-scheme: dark" in page
    sources = re.findall(r'src="data:image/(\w+);base64,([^"]+)"', page)
    pictures = [Image.open(io.BytesIO(base64.b64decode(content))) for _, content in sources]
    assert [picture.size for picture in pictures] == [(20, 20), (20, 20), (144, 144), (20, 20)]
    assert pictures[0].convert("RGB").getpixel((3, 3)) == (0, 128, 0)
    assert list(tmp_path.iterdir()) == [tmp_path / "s.html"]


def test_a_picture_has_its_file_name_below_and_its_path_when_asked(tmp_path: Path) -> None:
    path = "/a/folder/with/a/very/long/name/of/many/parts/red.png"
    hits = ((SheetImage(path, png("red")), 0.9), (SheetImage("plain.png", png("red")), 0.8))
    write_sheet(tmp_path / "s.html", [Answer(SheetImage(path, png("red")), hits)], "x")
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert re.findall('<span class="name" title="([^"]*)">([^<]*)</span>', page) == [
        (path, "red.png"),
        (path, "red.png"),
        ("plain.png", "plain.png"),
    ]
    assert page.count("/a/folder") == 4  # in titles and alternatives only


def test_a_sheet_has_room_for_so_many() -> None:
    check_sheet_size(100, 19)
    with pytest.raises(UserError, match="room for 2,000 images"):
        check_sheet_size(100, 20)
