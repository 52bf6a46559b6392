"""Features in files, and in folders of parts that several processes write."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from canary import Canary
from made_shards import png, write_tar

from ccl import FrozenEncoder
from ccl.atomic_files import check_target, write_csv
from ccl.continual_encoder.feature_files import (
    MANIFEST,
    Manifest,
    begin,
    missing_parts,
    parse_share,
    part_path,
    read_features,
    read_parts,
    write_features,
    write_parts,
)
from ccl.data import find_images
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


@pytest.mark.parametrize("name", ["f" * 300 + ".npz", "f" * 245 + ".npz", "new/" + "f" * 300 + "/f.npz"])
def test_a_name_that_is_too_long_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"can't write .*: File name too long"):
        check_target(tmp_path / name, [".npz"], "it")
    assert not list(tmp_path.iterdir())


def test_the_longest_name_that_is_not_refused_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("f" * (255 - len(".npz.bad_images.csv")) + ".npz")
    write_features(path, ROWS, NAMES, 7, {})
    write_csv(path.with_name(f"{path.name}.bad_images.csv"), ["name"], [])
    assert len(list(tmp_path.iterdir())) == 2


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


MakeFrozen = Callable[..., FrozenEncoder]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A hundred records in two shards; number 33 is not an image."""
    for shard in range(2):
        numbers = range(shard * 50, (shard + 1) * 50)
        files = {f"{number:02d}.png": b"<html>" if number == 33 else png(number) for number in numbers}
        write_tar(tmp_path / "in" / f"s-{shard}.tar", files)
    return f"shards:{tmp_path}/in/s-{{0..1}}.tar"


def test_shares_broken_and_resumed_give_the_rows_of_one_pass(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path
) -> None:
    encoder, out = make_frozen(), tmp_path / "features"
    images = find_images([shards], tmp_path)
    manifest = Manifest.of(encoder, images.source, part_images=20)
    assert manifest.num_parts == 5
    out.mkdir()
    (out / ".manifest.0123abcd-1-0123abcd.part.json").touch()  # of a process that was killed
    begin(out, manifest)
    first = write_parts(out, manifest, encoder, images, parse_share("1/2"))
    assert [next(first), next(first)] == [(20, 0), (20, 0)]
    first.close()  # broken off
    assert missing_parts(out, manifest) == [1, 3, 4]
    begin(out, manifest)
    written = list(write_parts(out, manifest, encoder, images, parse_share("2/2")))
    assert written == [(19, 1), (20, 0)]
    assert missing_parts(out, manifest) == [4]
    with pytest.raises(UserError, match=r"1 of 5 parts are missing or cut, the first is part-000004.npz"):
        read_parts(out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert list(write_parts(out, manifest, encoder, images)) == [(20, 0)]
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was done is not touched
    found = read_parts(out)
    sound = [number for number in range(100) if number != 33]
    assert [name.rpartition("::")[2] for name in found.names] == [f"{number:02d}" for number in sound]
    whole = encoder.features(images.source.subset(torch.tensor(sound)))
    assert torch.allclose(found.rows, whole, rtol=0, atol=1e-6)
    assert "s-0.tar::33" in (out / "part-000001.bad_images.csv").read_text()


def test_a_folder_of_other_images_or_another_version_is_refused(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path
) -> None:
    source = find_images([shards], tmp_path).source
    manifest = Manifest.of(make_frozen(), source, part_images=12)
    begin(tmp_path / "f", manifest)
    kept = (tmp_path / "f" / MANIFEST).read_bytes()
    part = source.subset(torch.arange(99))
    for other, what in (
        (Manifest.of(make_frozen(), part, part_images=12), "num_images"),
        (Manifest.of(make_frozen(), source.subset(torch.arange(99, -1, -1)), part_images=12), "images"),
        (Manifest.of(make_frozen(), source, part_images=13), "part_images"),
        (Manifest.of(make_frozen(seed=1), source, part_images=12), "about"),
    ):
        with pytest.raises(UserError, match=rf"another {what} in manifest.json"):
            begin(tmp_path / "f", other)
    assert (tmp_path / "f" / MANIFEST).read_bytes() == kept
    with pytest.raises(UserError, match="not empty and has no manifest"):
        begin(tmp_path / "in", manifest)
    with pytest.raises(UserError, match="into a folder; name one"):
        begin(tmp_path / "f.npz", manifest)
    (tmp_path / "f" / MANIFEST).write_text(json.dumps({"num_images": 3}))
    with pytest.raises(UserError, match="is not a folder of features"):
        read_parts(tmp_path / "f")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_cut, "is not a file of features"),
        (_bit, "Bad CRC-32"),
        (lambda path: path.write_bytes(b""), "is not a file of features"),
        (lambda path: path.write_bytes(path.with_name("part-000000.npz").read_bytes()), "a part of other features"),
    ],
)
def test_a_part_that_is_not_whole_is_written_again(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path, damage: Callable[[Path], object], fault: str
) -> None:
    encoder, out, notes = make_frozen(), tmp_path / "features", list[str]()
    images = find_images([shards], tmp_path)
    manifest = Manifest.of(encoder, images.source, part_images=20)
    begin(out, manifest)
    list(write_parts(out, manifest, encoder, images))
    whole = {path.name: path.read_bytes() for path in out.glob("*.csv")} | {
        "rows": read_parts(out).rows.numpy().tobytes()
    }
    damage(part_path(out, 1))
    with pytest.raises(UserError, match=rf"part-000001.npz.*{fault}|missing or cut, the first is part-000001"):
        read_parts(out)
    assert list(write_parts(out, manifest, encoder, images, note=notes.append)) == [(19, 1)]
    assert [fault in note and "part-000001.npz" in note for note in notes] == [True]
    found = {path.name: path.read_bytes() for path in out.glob("*.csv")} | {
        "rows": read_parts(out).rows.numpy().tobytes()
    }
    assert found == whole


def test_a_part_that_cannot_be_read_is_not_called_damaged(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, out = make_frozen(), tmp_path / "features"
    images = find_images([shards], tmp_path)
    manifest = Manifest.of(encoder, images.source, part_images=50)
    begin(out, manifest)
    list(write_parts(out, manifest, encoder, images))

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zipfile.ZipFile", denied)
    with pytest.raises(UserError, match=r"part-000000.npz can't be read: Permission denied$"):
        list(write_parts(out, manifest, encoder, images))


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", ""])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not one of 1/N … N/N"):
        parse_share(text)


def test_the_command_writes_parts_that_search_reads(command: Command, shards: str, tmp_path: Path) -> None:
    out, query = tmp_path / "features", tmp_path / "query.png"
    query.write_bytes(png(7))
    encode = ["encode", tmp_path, shards, "-o", out, "--part-images", 20, "--shard"]
    code, told, error = command(*encode, "2/2")
    assert (code, error) == (0, "")
    assert "2 parts with 39 images written by version 3, 1 left out" in told
    assert "2 of 5 parts are done" in told
    code, _, error = command("search", tmp_path, query, "-f", out, "-o", tmp_path / "s.html")
    assert code == 2
    assert "3 of 5 parts are missing or cut" in error
    assert "5 of 5 parts are done" in command(*encode, "1/2")[1]
    assert read_features(part_path(out, 4)).rows.shape[0] == 20
    assert command("search", tmp_path, query, "-f", out, "-k", 1, "-o", tmp_path / "s.html")[0] == 0
    assert "s-0.tar::07" in (tmp_path / "s.html").read_text()
