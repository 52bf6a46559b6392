"""Hostile archives: whatever they hold, nothing is written but known members, and nothing outside the target."""

import gzip
import hashlib
import tarfile
from pathlib import Path

import pytest
from crafted_tars import sparse_entry, tar_entry

from ccl.data import archives
from ccl.data.cifar import Layout, fetch
from ccl.errors import UserError

MEMBERS = {"train": "", "test": ""}  # md5 sums are compared when the set is read


def _pax_sparse(name: str, apparent_size: int, table: str = "0,0") -> bytes:
    info = tarfile.TarInfo("other")
    info.pax_headers = {"GNU.sparse.name": name, "GNU.sparse.size": str(apparent_size), "GNU.sparse.map": table}
    return info.tobuf(tarfile.PAX_FORMAT)


def _fetch(tmp_path: Path, entries: list[bytes], end: bytes = bytes(1024)) -> Path:
    root = tmp_path / "deep" / "root"
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(b"".join(entries) + end))
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    fetch(Layout("set", "set", MEMBERS, "", archive.as_uri(), md5), root)
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
        "absolute": [tar_entry(f"{outside}/test", content=b"evil"), tar_entry("/set/test", content=b"evil")],
        "symlink": [tar_entry("set/test", tarfile.SYMTYPE, f"{outside}/secret")],
        "symlinked folder": [tar_entry("set", tarfile.SYMTYPE, str(outside))],
        "hard link": [tar_entry("set/test", tarfile.LNKTYPE, f"{outside}/secret")],
        "hard link within": [tar_entry("set/test", tarfile.LNKTYPE, "set/train")],
        "character device": [tar_entry("set/test", tarfile.CHRTYPE)],
        "block device": [tar_entry("set/test", tarfile.BLKTYPE)],
        "pipe": [tar_entry("set/test", tarfile.FIFOTYPE)],
        "folder": [tar_entry("set/test", tarfile.DIRTYPE)],
        "sparse": [sparse_entry("set/test", 3_000_000)],
        "pax sparse": [_pax_sparse("set/test", 3_000_000)],
    }


@pytest.mark.parametrize("kind", _hostile(Path()))
def test_hostile_entries_write_nothing(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    entries = _hostile(outside)[kind]
    with pytest.raises(UserError, match="the archive lacks set/test"):
        _fetch(tmp_path, [TRAIN, *entries])
    assert _tree(tmp_path) == ["a.tar.gz", "deep", "deep/root", "outside", "outside/secret"]
    root = _fetch(tmp_path, [*entries, TRAIN, TEST, *entries])  # before the real ones or after them
    assert _tree(tmp_path / "deep") == ["root", "root/set", "root/set/test", "root/set/train"]
    assert (root / "set" / "test").read_bytes() == b"good test"
    assert not (root / "set").is_symlink()
    assert [path.read_bytes() for path in outside.iterdir()] == [b"secret"]


def test_sparse_entries_are_what_they_seem(tmp_path: Path) -> None:
    for entry in (sparse_entry("set/test", 3_000_000), _pax_sparse("set/test", 3_000_000)):
        (tmp_path / "a.tar").write_bytes(entry + bytes(1024))
        with tarfile.open(tmp_path / "a.tar") as tar:
            (found,) = tar.getmembers()
        assert (found.name, found.size, found.isreg(), found.issparse()) == ("set/test", 3_000_000, True, True)


def test_a_member_of_absurd_size_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "RATIO_FROM", 1_000_000)
    with pytest.raises(UserError, match="would unpack to more than 1,000,000 bytes"):
        _fetch(tmp_path, [TRAIN, tar_entry("set/test", content=bytes(3_000_000))])
    assert _tree(tmp_path / "deep" / "root") == []


@pytest.mark.parametrize("damage", ["map", "cut"])
def test_damaged_archives_are_one_clear_line(tmp_path: Path, damage: str) -> None:
    broken = _pax_sparse("set/test", 5, table="no,numbers") if damage == "map" else TEST[:515]
    with pytest.raises(UserError, match="can't download") as caught:
        _fetch(tmp_path, [TRAIN, broken], end=b"")
    assert "\n" not in str(caught.value)
    assert _tree(tmp_path / "deep" / "root") == []
