"""Shards read in place: what a pattern names, where images lie, labels, names, bad input."""

import gzip
import io
import json
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from made_shards import LONG_AGO, labelled_tars, png, write_tar
from PIL import Image

from ccl.data import BadImageError, ImageSource, gather, load_dataset
from ccl.data.shard_index import cache_folder
from ccl.data.shards import open_shards, shard_paths
from ccl.errors import UserError
from ccl.loading import load_settings


def names(paths: list[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_braces_globs_and_folders_name_shards(tmp_path: Path) -> None:
    for number in (8, 9, 10, 11):
        (tmp_path / f"s-{number:03d}.tar").touch()
    (tmp_path / "t.tar").touch()
    (tmp_path / "notes.txt").touch()
    assert names(shard_paths("s-{008..010}.tar", tmp_path)) == ["s-008.tar", "s-009.tar", "s-010.tar"]
    assert names(shard_paths("{t,s-011}.tar", tmp_path)) == ["t.tar", "s-011.tar"]  # in the order of the braces
    assert names(shard_paths("s-0{08..11}.tar", tmp_path)) == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]
    assert names(shard_paths("s-*.tar", tmp_path)) == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]
    assert names(shard_paths("", tmp_path)) == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar", "t.tar"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("x-{000..001}.tar", "there is no shard .*x-000.tar', which shards:x-"),
        ("x-*.tar", "names no shards"),
        ("notes.txt", "not a shard: they end in .tar, .parquet"),
        ("x-{9..1}.tar", "names no shards"),
        ("x-{0..99999999999}.tar", "more than 1,000,000"),
        ("x-{0..999}{0..999}{0..999}.tar", "more than 1,000,000"),
    ],
)
def test_patterns_that_name_nothing_are_refused(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=message) as caught:
        shard_paths(pattern, tmp_path)
    assert "\n" not in str(caught.value)


def test_images_come_in_the_order_of_the_shards_byte_for_byte(tmp_path: Path) -> None:
    paths = labelled_tars(tmp_path)
    for _ in range(2):  # the second time from the kept index
        found = open_shards([str(path) for path in paths])
        assert [found.source.encoded(at) for at in range(30)] == [png(number) for number in range(30)]
        assert [found.class_names[label] for label in found.labels] == [str(number % 2) for number in range(30)]
        assert found.source.name(17) == f"{paths[1]}::0017"
        assert found.source.ids.tolist() == list(range(30))
    part = found.source.subset(torch.tensor([25, 3, 24]))
    assert [part.encoded(at) for at in range(3)] == [png(25), png(3), png(24)]
    assert part.ids.tolist() == [25, 3, 24]
    pixels = np.asarray(Image.open(io.BytesIO(png(3))))
    assert np.array_equal(np.asarray(part.picture(1)), pixels)


def test_an_index_is_made_once_and_anew_when_the_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = labelled_tars(tmp_path, num_shards=1)
    open_shards([str(path)])
    with monkeypatch.context() as patch:
        patch.setattr("ccl.data.tar_shards.tar_members", lambda *_: pytest.fail("read again"))
        kept = open_shards([str(path)])
    assert len(kept.source) == 10
    write_tar(path, {"new.png": png(99)})
    os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    assert open_shards([str(path)]).source.encoded(0) == png(99)
    with pytest.raises(BadImageError, match=r"part-000.tar::\S+: .*changed after it was indexed"):
        kept.source.encoded(0)


@pytest.mark.parametrize("how", ["width", "labels", "names", "keys"])
def test_a_kept_index_that_cant_be_is_made_anew(tmp_path: Path, how: str) -> None:
    (path,) = labelled_tars(tmp_path, num_shards=1)
    before = {*cache_folder().glob("shards/*.npz")}
    open_shards([str(path)])
    (kept,) = {*cache_folder().glob("shards/*.npz")} - before
    with np.load(kept) as held:
        records, names = held["records"].copy(), json.loads(held["names"].tobytes())
    if how == "width":
        records = records.astype([("place", "u8"), ("size", "u8"), ("label", "i8")])
    elif how == "labels":
        records["label"][3] = 1 << 30
    else:
        names[["names", "keys"].index(how)][0] = 10**30
    np.savez(kept, records=records, names=np.frombuffer(json.dumps(names).encode(), np.uint8))
    assert [*map(str, open_shards([str(path)]).labels)] == [*"0101010101"]


def test_a_batch_carries_its_own_shards_only_and_can_be_sent(tmp_path: Path) -> None:
    found = open_shards([str(path) for path in labelled_tars(tmp_path)])
    sent = pickle.dumps(found.source.subset(torch.tensor([29])))
    assert b"part-002.tar" in sent
    assert b"part-000.tar" not in sent
    context = multiprocessing.get_context("fork")
    found.source.encoded(0)  # the parent's handle is open when the children are forked
    with context.Pool(2) as pool:
        assert pool.map(found.source.encoded, range(30)) == [png(number) for number in range(30)]


def test_keys_group_files_and_labels_come_from_cls_then_json(tmp_path: Path) -> None:
    files = [
        ("n1/a.mask.png", png(1)),
        ("n1/a.jpg", png(2)),
        ("n1/a.json", json.dumps({"label": "cat"}).encode()),
        ("n1/b.png", png(3)),
        ("n1/b.cls", b"dog\n"),
        ("n1/b.json", json.dumps({"label": "cat"}).encode()),
        ("n2/a.webp", png(4)),
        ("n2/a.json", b"{"),
        ("n2/c.txt", b"no image"),
        ("__MACOSX/n1/a.jpg", b"hidden"),
        (f"{'long/' * 60}d.jpeg", png(5)),
    ]
    found = open_shards([str(write_tar(tmp_path / "x.tar", files))])
    assert [found.source.encoded(at) for at in range(4)] == [png(2), png(3), png(4), png(5)]
    assert [found.class_names[label] if label >= 0 else None for label in found.labels] == ["cat", "dog", None, None]
    assert found.source.name(0).endswith("x.tar::n1/a")
    assert found.source.name(3).endswith("long/d")
    assert [line.split(": ")[1] for line in found.notes] == [
        "1 keys without an image are skipped",
        "1 further images of a key are skipped",
    ]


def broken(path: Path, kind: str) -> None:
    """A shard of ten pictures, then made unusable."""
    (made,) = labelled_tars(path.parent, num_shards=1)
    content = made.read_bytes()
    offset = int(open_shards([str(made)]).source.records["place"][4]) * 512
    cuts = {"in an image": offset + 100, "in a header": offset - 300, "between files": offset - 512}
    if kind == "compressed":
        content = gzip.compress(content)
    elif kind == "damaged header":
        content = content[: offset - 512] + b"x" * 512 + content[offset:]
    elif kind == "text":
        content = b"not a tar\n" * 200
    elif kind == "empty":
        content = b""
    else:
        content = content[: cuts[kind]]
    path.write_bytes(content)


def test_a_label_that_is_nested_too_deeply_is_none(tmp_path: Path) -> None:
    nested = {"a.png": png(0), "a.json": b"[" * 200_000, "b.png": png(1), "b.json": b'{"label": 3}'}
    whole = open_shards([str(write_tar(tmp_path / "one.tar", nested))])
    assert whole.labels.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("in an image", "is cut off, damaged or not a tar"),
        ("in a header", "is cut off, damaged or not a tar"),
        ("between files", "is cut off, damaged or not a tar"),
        ("damaged header", "is cut off, damaged or not a tar"),
        ("compressed", "is compressed, and shards are read by position"),
        ("text", "is cut off, damaged or not a tar"),
        ("empty", "is cut off, damaged or not a tar"),
    ],
)
def test_a_shard_that_is_cut_or_not_a_tar_is_refused_in_a_line(tmp_path: Path, kind: str, message: str) -> None:
    broken(tmp_path / "bad.tar", kind)
    with pytest.raises(UserError, match=message) as caught:
        open_shards([str(tmp_path / "bad.tar")])
    assert "bad.tar" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_keys_and_shards_named_twice_are_refused(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", {"1.png": png(1), "2.png": png(2)})
    second = write_tar(tmp_path / "b.tar", {"3.png": png(3), "2.png": png(4)})
    within = write_tar(tmp_path / "c.tar", {"5.png": png(5), "6.png": png(6), "5.jpg": png(7)})
    with pytest.raises(UserError, match=r"the key '2' is in both '.*a\.tar' and '.*b\.tar'"):
        open_shards([str(first), str(second)])
    with pytest.raises(UserError, match=r"the key '5' is in '.*c\.tar' twice"):
        open_shards([str(within)])
    with pytest.raises(UserError, match="named twice"):
        open_shards([str(first), str(tmp_path / "." / "a.tar")])
    with pytest.raises(UserError, match="hold no images"):
        open_shards([str(write_tar(tmp_path / "d.tar", {"1.txt": b"text"}))])


def test_a_dataset_holds_out_every_fifth_record_of_a_class(tmp_path: Path) -> None:
    labelled_tars(tmp_path)
    dataset = load_dataset("shards:part-{000..002}.tar", tmp_path)
    tested = [number for number in range(30) if number // 2 % 5 == 4]
    learned = [number for number in range(30) if number not in tested]
    assert contents(dataset.train) == [png(number) for number in learned]
    assert contents(dataset.test) == [png(number) for number in tested]
    assert dataset.train_labels.tolist() == [number % 2 for number in learned]
    assert torch.cat([dataset.train.ids, dataset.test.ids]).tolist() == list(range(30))
    assert dataset.class_names == ("0", "1")
    assert dataset.fingerprint == load_dataset("shards:part-*.tar", tmp_path).fingerprint
    assert dataset.fingerprint != load_dataset("shards:part-{000..001}.tar", tmp_path).fingerprint


def contents(source: ImageSource) -> list[bytes]:
    return [source.encoded(at) for at in range(len(source))]


def test_shards_called_val_are_the_test_part_and_classes_are_in_order(tmp_path: Path) -> None:
    files = [(f"{number}.{ending}", content) for number in range(11) for ending, content in
             (("png", png(number)), ("cls", str(10 - number).encode()))]  # fmt: skip
    write_tar(tmp_path / "train-0.tar", files)
    write_tar(tmp_path / "val-0.tar", {"v.png": png(50), "v.cls": b"9"})
    dataset = load_dataset("shards", tmp_path)
    assert dataset.class_names == tuple(map(str, range(11)))  # by number: not 0, 1, 10, 2
    assert dataset.train_labels.tolist() == list(range(10, -1, -1))
    assert (contents(dataset.test), dataset.test_labels.tolist()) == ([png(50)], [9])
    write_tar(tmp_path / "val-1.tar", {"w.png": png(51), "w.cls": b"11"})
    with pytest.raises(UserError, match=r"class '11' of the test part of .* is not in training"):
        load_dataset("shards", tmp_path)


def test_bad_records_are_listed_like_bad_images(tmp_path: Path) -> None:
    files = {f"{number:02d}.png": png(number) for number in range(40)}
    files["07.png"] = b"not an image"
    files["31.png"] = b""
    path = write_tar(tmp_path / "x.tar", files)
    dataset = load_dataset("shards:x.tar", tmp_path)
    assert [Path(bad.path).name for bad in dataset.skipped] == ["x.tar::07", "x.tar::31"]
    assert dataset.skipped[1].reason == "the file is empty"
    assert contents(dataset.train) == [files[name] for name in files if name not in ("07.png", "31.png")]
    assert dataset.train.ids.tolist() == list(range(38))
    again = load_dataset("shards:x.tar", tmp_path)  # from what the decoder said
    assert (again.skipped, again.fingerprint) == (dataset.skipped, dataset.fingerprint)
    found = gather([f"shards:{path}"], tmp_path)
    assert len(found.source) == 38
    assert found.names[7] == f"{path}::08"


def test_records_without_a_label_among_others_are_left_out(tmp_path: Path) -> None:
    files = [(f"{n:02d}.{end}", png(n) if end == "png" else b"1") for n in range(40) for end in ("png", "cls")]
    write_tar(tmp_path / "x.tar", [file for file in files if file[0] != "05.cls"])
    dataset = load_dataset("shards:x.tar", tmp_path)
    assert [Path(bad.path).name for bad in dataset.skipped] == ["x.tar::05"]
    write_tar(tmp_path / "y.tar", [file for file in files if file[0] > "03"])
    some = [file for file in files if not file[0].startswith("0") or file[0].endswith("png")]
    write_tar(tmp_path / "z.tar", some)
    with pytest.raises(UserError, match="10 of 40 records have no label"):
        load_dataset("shards:z.tar", tmp_path)


def test_files_and_shards_are_gathered_together_in_their_order(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", {"1.png": png(1), "2.png": png(2)})
    (tmp_path / "3.png").write_bytes(png(3))
    found = gather([str(tmp_path / "3.png"), f"shards:{tar}"], tmp_path)
    assert contents(found.source) == [png(3), png(1), png(2)]
    assert list(found.names) == [str(tmp_path / "3.png"), f"{tar}::1", f"{tar}::2"]
    assert found.source.ids.tolist() == [0, 1, 2]


def test_commas_within_braces_do_not_part_datasets() -> None:
    named = ["shards:x/{a,b}-{0..3}.tar", "digits", "shards:{c,d}.tar"]
    assert load_settings("demo", [f"dataset={','.join(named)}"]).dataset == named


def test_the_index_of_a_record_is_ten_bytes(tmp_path: Path) -> None:
    source = open_shards([str(path) for path in labelled_tars(tmp_path)]).source
    assert source.records.itemsize <= 10
    assert np.min_scalar_type(60_000).itemsize == 2  # of a shard's number


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("CCL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cached")
    assert cache_folder() == Path("/cached/ccl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "ccl"
