"""Features in files: what is written comes back, in every format, and hostile files do nothing."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ccl.atomic_files import check_target
from ccl.continual_encoder.features import read_features, write_features
from ccl.errors import UserError, require

NAMES = ['a, "b".png', "zeile\numbruch.png", "kyrillisch-ж.png", "bytes-\udcff.png"]
ROWS = torch.tensor([[1 / 3, -1e-30, 7.0], [0.1, 2.5, 3e38], [0.0, 1.0, 2.0], [5.0, 6.0, 7.0]])


def test_npz_comes_back_as_it_was_and_needs_no_pickle(tmp_path: Path) -> None:
    write_features(tmp_path / "f.npz", ROWS, NAMES, 7, {"fingerprint": "ab", "mean": [0.5]})
    found = read_features(tmp_path / "f.npz")
    assert torch.equal(found.rows, ROWS)
    assert found.names == tuple(NAMES)
    assert (found.version, found.about) == (7, {"fingerprint": "ab", "mean": [0.5]})
    with np.load(tmp_path / "f.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {"features", "paths", "version", "about"}
        assert arrays["features"].dtype == np.float32


def test_csv_has_every_digit_and_quotes_names(tmp_path: Path) -> None:
    write_features(tmp_path / "f.csv", ROWS, NAMES, 7, {})
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        head, *lines = csv.reader(file)
    assert head == ["path", "version", "f0", "f1", "f2"]
    assert [line[0] for line in lines] == [*NAMES[:3], "bytes-\\udcff.png"]
    assert {line[1] for line in lines} == {"7"}
    assert torch.equal(torch.tensor([[float(value) for value in line[2:]] for line in lines]), ROWS)


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    write_features(tmp_path / "f.parquet", ROWS, NAMES, 7, {"fingerprint": "ab"})
    table = parquet.read_table(tmp_path / "f.parquet")
    assert table.column_names == ["path", "version", "features"]
    assert table["path"].to_pylist() == [*NAMES[:3], "bytes-\\udcff.png"]
    assert table["version"].to_pylist() == [7] * 4
    assert torch.equal(torch.tensor(table["features"].to_pylist()), ROWS)
    assert json.loads(table.schema.metadata[b"ccl"]) == {"fingerprint": "ab"}


def test_a_missing_package_is_told_with_its_extra() -> None:
    with pytest.raises(UserError, match=r"needs nothing_of_the_kind.*pip install '\.\[parquet\]'"):
        require(["nothing_of_the_kind"], "parquet", "a .parquet file")


def test_a_wrong_target_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.npz, \.csv, \.parquet"):
        write_features(tmp_path / "f.h5", ROWS, NAMES, 7, {})
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        write_features(tmp_path / "folder.csv", ROWS, NAMES, 7, {})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="can't write"):
        check_target(tmp_path / "file" / "below" / "f.csv", [".csv"], "it")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def _bomb(path: Path) -> None:
    np.savez_compressed(path, **{**GOOD, "features": np.zeros((2, 5_000_000), np.float32)})  # 40 MB in 40 kB


def _of_objects(path: Path, canary: Path) -> None:
    hostile = np.array([Canary(canary)], dtype=object)
    np.savez(path, features=hostile, paths=hostile, version=hostile, about=hostile)


GOOD = {"features": np.ones((2, 3), np.float32), "paths": np.array(["a", "b"]), "version": 1, "about": "{}"}


@pytest.mark.parametrize(
    "make",
    [
        lambda path, canary: _of_objects(path, canary),
        lambda path, canary: path.write_bytes(pickle.dumps(Canary(canary))),
        lambda path, canary: path.write_bytes(b""),
        lambda path, canary: path.write_bytes(b"PK\x03\x04 cut"),
        lambda path, canary: _bomb(path),
        lambda path, canary: np.savez(path, **{**GOOD, "paths": np.array(["a"])}),
        lambda path, canary: np.savez(path, **{**GOOD, "features": np.ones((2, 3))}),
        lambda path, canary: np.savez(path, **{**GOOD, "features": np.full((2, 3), np.nan, np.float32)}),
        lambda path, canary: np.savez(path, **{**GOOD, "version": "one"}),
        lambda path, canary: np.savez(path, **{**GOOD, "about": "[" * 100_000}),
        lambda path, canary: np.savez(path, features=GOOD["features"]),
    ],
)
def test_hostile_files_are_refused_in_a_line_and_run_nothing(
    tmp_path: Path, make: Callable[[Path, Path], object]
) -> None:
    path, canary = tmp_path / "f.npz", tmp_path / "canary"
    make(path, canary)
    with pytest.raises(UserError, match="not a file of features") as told:
        read_features(path)
    assert "\n" not in str(told.value)
    assert not canary.exists()


def test_the_fingerprint_tells_encoders_apart_and_not_their_numbers(make_frozen: Callable[..., object]) -> None:
    one = make_frozen()
    others = [make_frozen(seed=1), make_frozen(size=12), make_frozen(resize=16), make_frozen(fraction=0.9)]
    assert one.fingerprint == make_frozen(version=9).fingerprint
    assert len({encoder.fingerprint for encoder in [one, *others]}) == 5
    stranger = {"version": 3, "fingerprint": others[0].fingerprint}
    with pytest.raises(UserError, match=r"it was made with version 3 of another encoder.*; do that"):
        one.refuse_other(stranger, "it", "do that")
    with pytest.raises(UserError, match="made with version 2, and this is version 3"):
        one.refuse_other({"version": 2}, "it", "do that")
