"""CIFAR's layout: reading real and made-up files, refusing hostile ones, and fetching archives."""

import functools
import gzip
import hashlib
import http.server
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crafted_tars import sparse_entry, tar_entry
from real_data import root_with

from ccl.data import archives, load_dataset
from ccl.data.cifar import LAYOUTS, Layout, fetch, read
from ccl.errors import UserError


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _fake_members() -> dict[str, bytes]:
    """Image n: red all n, green all 50 + n, but for its second pixel in red, which is 200."""
    data = np.zeros((3, 3, 32, 32), dtype=np.uint8)
    data[:, 0] = np.arange(3)[:, None, None]
    data[:, 1] = 50 + np.arange(3)[:, None, None]
    data[:, 0, 0, 1] = 200
    part = {"data": data.reshape(3, -1), "fine_labels": [1, 0, 1], "coarse_labels": [0, 0, 0]}
    names = {"fine_label_names": ["ant", "bee"]}
    return {"train": pickle.dumps(part, 4), "test": pickle.dumps(part, 4), "meta": pickle.dumps(names, 4)}


def _fake_layout(members: dict[str, bytes]) -> Layout:
    return replace(LAYOUTS["cifar100"], members={name: _md5(content) for name, content in members.items()})


def _write(root: Path, members: dict[str, bytes]) -> None:
    (root / "cifar-100-python").mkdir()
    for name, content in members.items():
        (root / "cifar-100-python" / name).write_bytes(content)


def test_made_up_files_are_read_pixel_for_pixel(tmp_path: Path) -> None:
    members = _fake_members()
    _write(tmp_path, members)
    dataset = read(_fake_layout(members), tmp_path)
    assert dataset.class_names == ("ant", "bee")
    assert dataset.train_labels.tolist() == [1, 0, 1]
    assert [dataset.train.picture(2).getpixel(at) for at in ((0, 0), (1, 0), (0, 1))] == [
        (2, 52, 0),
        (200, 52, 0),
        (2, 52, 0),
    ]


@pytest.mark.needs_data
def test_real_cifar100() -> None:
    dataset = load_dataset("cifar100", root_with("cifar-100-python"))
    assert (len(dataset.train), len(dataset.test or [])) == (50_000, 10_000)
    assert dataset.class_names[:2] == ("apple", "aquarium_fish")
    assert dataset.class_names[99] == "worm"
    assert torch.bincount(dataset.train_labels).tolist() == [500] * 100
    assert dataset.train_labels[:4].tolist() == [19, 29, 0, 11]
    means = dataset.train.images.float().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.5071, 0.4866, 0.4409]), atol=1e-3)  # the field's well-known values


@pytest.mark.needs_data
def test_real_cifar100_narrowed() -> None:
    root = root_with("cifar-100-python")
    small = load_dataset("cifar100", root, classes=["worm", "apple"], images_per_class=7, resize=16)
    assert small.class_names == ("apple", "worm")
    assert small.train.image_size == (16, 16)
    assert torch.bincount(small.train_labels).tolist() == [7, 7]
    assert len(small.test or []) == 200


class _Hostile:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_does_not_run(tmp_path: Path, protocol: int) -> None:
    """Neither as another file than the official one, nor if that one were hostile."""
    canary, members = tmp_path / "canary", _fake_members()
    layout = _fake_layout(members)
    _write(tmp_path, members)
    for hostile in (_Hostile(os.mkdir, str(canary)), _Hostile(eval, f"open({str(canary)!r}, 'w')")):
        content = pickle.dumps({"data": hostile}, protocol)
        (tmp_path / layout.folder / "test").write_bytes(content)
        with pytest.raises(UserError, match="test is not the official file"):
            read(layout, tmp_path)
        with pytest.raises(pickle.UnpicklingError, match="it asks for"):
            read(_fake_layout(members | {"test": content}), tmp_path)
        assert not canary.exists()
    pickle.loads(pickle.dumps(_Hostile(os.mkdir, str(canary)), protocol))
    assert canary.exists()  # the bait is real: Python's own unpickler takes it


def _archive(path: Path, members: dict[str, bytes]) -> None:
    entries = [tar_entry(f"cifar-100-python/{name}", content=content) for name, content in members.items()]
    path.write_bytes(gzip.compress(b"".join(entries) + bytes(1024)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/a.tar.gz"
        running.shutdown()


def _everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_an_archive_is_fetched_checked_and_only_its_known_members_are_written(tmp_path: Path, server: str) -> None:
    members = _fake_members()
    _archive(tmp_path / "served" / "a.tar.gz", members)
    heard: list[tuple[int, int]] = []
    root = tmp_path / "deep" / "root"
    fetch(replace(_fake_layout(members), url=server), root, lambda *now: heard.append(now))
    assert _everything_below(root) == [f"cifar-100-python/{name}" for name in ("meta", "test", "train")]
    assert {name: (root / "cifar-100-python" / name).read_bytes() for name in members} == members
    size = (tmp_path / "served" / "a.tar.gz").stat().st_size
    assert heard[-1] == (size, size)


def test_nothing_is_left_behind_when_the_download_fails(tmp_path: Path, server: str) -> None:
    root = tmp_path / "root"

    members, served = _fake_members(), tmp_path / "served" / "a.tar.gz"

    def refused(url: str, told: str) -> None:
        with pytest.raises(UserError, match=f"can't download {url} to .*{told}") as caught:
            fetch(replace(_fake_layout(members), url=url), root)
        assert "\n" not in str(caught.value)

    refused(server, "404")
    refused((tmp_path / "absent").as_uri(), "No such file")
    for other in ({"train": members["train"], "meta": members["meta"]}, members | {"test": b"x"}):
        _archive(served, other)
        refused(server, "it has no official cifar-100-python/test")
    for content in (b"no archive", gzip.compress(tar_entry("cifar-100-python/test", content=b"x")[:515])):
        served.write_bytes(content)
        refused(server, "")
    assert list(root.iterdir()) == []


def test_load_dataset_downloads_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = _fake_members()
    _archive(tmp_path / "a.tar.gz", members)
    layout = replace(_fake_layout(members), url=(tmp_path / "a.tar.gz").as_uri())
    monkeypatch.setitem(LAYOUTS, "cifar100", layout)
    root = tmp_path / "root"
    with pytest.raises(UserError, match="pass --download"):
        load_dataset("cifar100", root)
    assert not root.exists()
    assert len(load_dataset("cifar100", root, download=True).train) == 3
    (tmp_path / "a.tar.gz").unlink()
    assert len(load_dataset("cifar100", root, download=True).train) == 3  # present: not fetched again


# -- hostile archives: nothing is written but known members, and nothing outside the target --

MEMBERS = {"train": _md5(b"good train"), "test": _md5(b"good test")}


def _fetch(tmp_path: Path, entries: list[bytes]) -> Path:
    root = tmp_path / "deep" / "root"
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(b"".join(entries) + bytes(1024)))
    fetch(Layout("set", "set", MEMBERS, "", archive.as_uri()), root)
    return root


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


TRAIN = tar_entry("set/train", content=b"good train")
TEST = tar_entry("set/test", content=b"good test")


def _hostile(outside: Path) -> dict[str, list[bytes]]:
    """Entries that want to be, or to lead to, something else than the member set/test."""
    return {
        "parent": [
            tar_entry("set/../../../../outside/test", content=b"evil"),
            tar_entry("../outside/test", content=b"evil"),
        ],
        "symlink": [tar_entry("set/test", tarfile.SYMTYPE, f"{outside}/secret")],
        "symlinked folder": [tar_entry("set", tarfile.SYMTYPE, str(outside))],
        "hard link": [tar_entry("set/test", tarfile.LNKTYPE, f"{outside}/secret")],
        "sparse": [sparse_entry("set/test", 3_000_000)],
    }


@pytest.mark.parametrize("kind", _hostile(Path()))
def test_hostile_entries_write_nothing(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    entries = _hostile(outside)[kind]
    with pytest.raises(UserError, match="has no official set/test"):
        _fetch(tmp_path, [TRAIN, *entries])
    assert _tree(tmp_path) == ["a.tar.gz", "deep", "deep/root", "outside", "outside/secret"]
    root = _fetch(tmp_path, [*entries, TRAIN, TEST, *entries])  # before the real ones or after them
    assert _tree(tmp_path / "deep") == ["root", "root/set", "root/set/test", "root/set/train"]
    assert (root / "set" / "test").read_bytes() == b"good test"
    assert not (root / "set").is_symlink()
    assert [path.read_bytes() for path in outside.iterdir()] == [b"secret"]


def test_a_member_of_absurd_size_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "RATIO_FROM", 1_000_000)
    with pytest.raises(UserError, match="would unpack to more than 1,000,000 bytes"):
        _fetch(tmp_path, [TRAIN, tar_entry("set/test", content=bytes(3_000_000))])
    assert _tree(tmp_path / "deep" / "root") == []
