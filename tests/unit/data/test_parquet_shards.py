"""Parquet files with a column of images, read by row group."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_shards import png

from ccl.data import BadImageError, load_dataset
from ccl.data.shards import ShardedImages, open_shards
from ccl.errors import UserError


def write_parquet(path: Path, columns: dict[str, Any], group: int = 4, metadata: dict[str, str] | None = None) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path, row_group_size=group)
    return path


def opened(path: Path) -> ShardedImages:
    return open_shards([str(path)])


def test_structs_of_bytes_and_path_with_named_labels(tmp_path: Path) -> None:
    pictures = [{"bytes": png(number), "path": f"{number}.png"} for number in range(11)]
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    path = write_parquet(
        tmp_path / "train-00000-of-00001.parquet",
        {"image": pictures, "label": [number % 2 for number in range(11)]},
        metadata={"huggingface": json.dumps(features)},
    )
    found = opened(path)
    order = [7, 0, 10, 3, 4, 8, 1, 2, 9, 5, 6]  # over the three row groups, back and forth
    assert [found.source.encoded(at) for at in order] == [png(number) for number in order]
    assert [found.class_names[label] for label in found.labels[:3]] == ["cat", "dog", "cat"]
    assert found.source.name(10) == f"{path}::10"
    assert found.source.subset(torch.tensor([9])).encoded(0) == png(9)
    dataset = load_dataset("shards:train-*.parquet", tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert len(dataset.train) == 9


def test_plain_bytes_and_text_labels(tmp_path: Path) -> None:
    columns = {"name": ["a", "b"], "jpg": [png(1), png(2)], "cls": ["x", None]}
    found = opened(write_parquet(tmp_path / "x.parquet", columns))
    assert [found.source.encoded(at) for at in range(2)] == [png(1), png(2)]
    assert (found.class_names, found.labels.tolist()) == (("x",), [0, -1])


def test_a_row_without_bytes_is_a_bad_image(tmp_path: Path) -> None:
    pictures = [{"bytes": png(1), "path": None}, {"bytes": None, "path": "elsewhere.png"}, None]
    source = opened(write_parquet(tmp_path / "x.parquet", {"image": pictures})).source
    for row in (1, 2):
        with pytest.raises(BadImageError, match=rf"x.parquet::{row}: .*no bytes of an image"):
            source.picture(row)


def test_what_is_not_a_table_of_images_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a"], "label": [1]})
    with pytest.raises(UserError, match=r"no column of images .* its columns are text, label$"):
        opened(path)
    whole = write_parquet(tmp_path / "y.parquet", {"image": [png(1)]}).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text" * 100):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is cut off or not a Parquet file") as caught:
            opened(path)
        assert "\n" not in str(caught.value)


def test_a_footer_that_claims_too_much_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and so on")

    class Claims:
        schema_arrow = None
        metadata = SimpleNamespace(num_rows=1 << 62)

    monkeypatch.setattr("ccl.data.parquet_shards._opened", lambda shard: Claims)
    monkeypatch.setattr("ccl.data.parquet_shards._image_column", lambda *_: "image")
    with pytest.raises(
        UserError, match=r"says that it has 4,611,686,018,427,387,904 rows in \d+ bytes; fetch it again$"
    ):
        opened(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"a .parquet shard needs pyarrow.parquet, .* pip install '.\[parquet\]'"):
        opened(tmp_path / "x.parquet")
