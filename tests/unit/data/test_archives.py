"""Archives nobody vouches for: their images are unpacked under our names, nothing else is, and nothing outside."""

import bz2
import errno
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from crafted_tars import sparse_entry, tar_entry

from ccl.data import archives, decoding
from ccl.data.archives import Unpacked, unpack
from ccl.errors import UserError

NAMES = ["b.png", "a/c.JPG", "a.png", "a/b/d.tiff"]
SORTED = ["a/b/d.tiff", "a/c.JPG", "a.png", "b.png"]  # folder by folder, as a folder is walked


def _pax_sparse(name: str, apparent_size: int) -> bytes:
    info = tarfile.TarInfo("other")
    info.pax_headers = {"GNU.sparse.name": name, "GNU.sparse.size": str(apparent_size), "GNU.sparse.map": "0,0"}
    return info.tobuf(tarfile.PAX_FORMAT)


def _tar(path: Path, *entries: bytes) -> Path:
    path.write_bytes(b"".join(entries) + bytes(1024))
    return path


def _zip(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content, compress_type=method)
    return path


def _patched(path: Path, *changes: tuple[bytes, int, str, int]) -> Path:
    """Overwrite a number at an offset after each place of a signature: local headers PK34, central ones PK12."""
    content = bytearray(path.read_bytes())
    for signature, offset, form, value in changes:
        at = content.find(signature)
        while at >= 0:
            struct.pack_into(form, content, at + offset, value)
            at = content.find(signature, at + 4)
    path.write_bytes(content)
    return path


def _contents(unpacked: Unpacked) -> dict[str, bytes]:
    return {name: Path(path).read_bytes() for name, path in zip(unpacked.members, unpacked.paths, strict=True)}


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".TGZ": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}


@pytest.mark.parametrize("suffix", [*PACKERS, ".zip", ".stored.ZIP"])
def test_every_format_gives_its_images_sorted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    files = [(name, name.encode() * 1000) for name in NAMES]
    others = [(name, b"?") for name in ("readme.txt", ".hidden.png", "__MACOSX/a.png", ".git/a.png", "x.zip")]
    if suffix in PACKERS:
        entries = [tar_entry(f"./{name}", content=content) for name, content in files]
        entries += [tar_entry("a", tarfile.DIRTYPE), *(tar_entry(name, content=content) for name, content in others)]
        path.write_bytes(PACKERS[suffix](b"".join(entries) + bytes(1024)))
    else:
        method = zipfile.ZIP_STORED if "stored" in suffix else zipfile.ZIP_DEFLATED
        _zip(path, *files, ("a/", b""), *others, method=method)
    heard: list[tuple[int, int]] = []
    unpacked = unpack(path, tmp_path / "scratch", lambda *now: heard.append(now))
    assert list(unpacked.members) == SORTED
    assert _contents(unpacked) == dict(files)
    assert unpacked.others == ("readme.txt", "x.zip")
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert {total for _, total in heard} == {path.stat().st_size}
    assert len(heard) == 4
    assert [os.path.splitext(file)[1] for file in unpacked.paths] == [".tiff", ".jpg", ".png", ".png"]


def _hostile(outside: Path) -> dict[str, tuple[list[bytes], int, int]]:
    """Entries, how many of them are images for all their names, and how many are called so and are none."""
    return {
        "parent": (
            [tar_entry("../../../outside/new.png", content=b"x"), tar_entry("a/../../x.png", content=b"x")],
            2,
            0,
        ),
        "absolute": ([tar_entry(f"{outside}/new.png", content=b"x"), tar_entry("/x.png", content=b"x")], 2, 0),
        "symlink": ([tar_entry("s.png", tarfile.SYMTYPE, f"{outside}/secret.png")], 0, 1),
        "symlinked folder": (
            [tar_entry("a", tarfile.SYMTYPE, str(outside)), tar_entry("a/new.png", content=b"x")],
            1,
            0,
        ),
        "hard links": ([tar_entry("h.png", tarfile.LNKTYPE, to) for to in (f"{outside}/secret.png", "good.png")], 0, 2),
        "link to be written through": (
            [
                tar_entry("0000001.png", tarfile.SYMTYPE, f"{outside}/secret.png"),
                tar_entry("0000001.png", content=b"x"),
            ],
            1,
            1,
        ),
        "devices": ([tar_entry("d.png", kind) for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)], 0, 3),
        "folder": ([tar_entry("f.png", tarfile.DIRTYPE)], 0, 0),
        "sparse": ([sparse_entry("s.png", 3_000_000), _pax_sparse("s.png", 3_000_000)], 0, 2),
        "same name": ([tar_entry("t.png", content=b"first"), tar_entry("t.png", content=b"second")], 2, 0),
        "odd names": ([tar_entry("a\nb.png", content=b"x"), tar_entry(b"\xff\xfe.png", content=b"x")], 2, 0),
        "no suffix": (
            [tar_entry("png", content=b"x"), tar_entry("x.png/", content=b"x"), tar_entry("", content=b"x")],
            0,
            0,
        ),
    }


@pytest.mark.parametrize("kind", _hostile(Path()))
def test_hostile_entries_of_a_tar_write_nothing_outside(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(b"secret")
    entries, num_images, num_special = _hostile(outside)[kind]
    good = tar_entry("good.png", content=b"good")
    archive = _tar(tmp_path / "a.tar", good, *entries)
    unpacked = unpack(archive, tmp_path / "deep" / "scratch")
    num_found = sum(name.endswith(".png") for name in unpacked.others)
    assert (len(unpacked.members), num_found) == (1 + num_images, num_special)
    assert b"secret" not in _contents(unpacked).values()
    assert _contents(unpacked)["good.png"] == b"good"
    (folder,) = (tmp_path / "deep" / "scratch").iterdir()
    numbered = [f"{number:07}.png" for number in range(1 + num_images)]
    assert _tree(folder) == [*numbered]
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert _tree(tmp_path) == sorted(["a.tar", "outside", "outside/secret.png", *_below(tmp_path, "deep")])
    assert (outside / "secret.png").read_bytes() == b"secret"


def _below(folder: Path, name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}/{path}" for path in _tree(folder / name))


def test_hostile_entries_of_a_zip_write_nothing_outside(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.png")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    pipe = zipfile.ZipInfo("pipe.png")
    pipe.create_system, pipe.external_attr = 3, (stat.S_IFIFO | 0o777) << 16
    plain = ["../../up.png", "/root.png", "a\nb.png", "ü.png", "C:\\x.png"]
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = _zip(
            tmp_path / "a.zip",
            (link, b"/etc/passwd"),
            (pipe, b""),
            *((name, name.encode()) for name in plain),
            ("t.png", b"first"),
            ("t.png", b"second"),
        )
    unpacked = unpack(archive, tmp_path / "scratch")
    assert unpacked.others == ("link.png", "pipe.png")
    assert sorted(unpacked.members) == sorted([*plain, "t.png", "t.png"])
    at = unpacked.members.index("t.png")
    assert [Path(path).read_bytes() for path in unpacked.paths[at : at + 2]] == [b"first", b"second"]
    (folder,) = (tmp_path / "scratch").iterdir()
    assert _tree(folder) == [f"{number:07}.png" for number in range(7)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "scratch"]


def test_a_zip_whose_names_are_no_utf8(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", ("aXb.png", b"1"))
    archive.write_bytes(archive.read_bytes().replace(b"aXb", b"a\xffb"))
    assert _contents(unpack(archive, tmp_path / "w")) == {"a\xa0b.png": b"1"}  # cp437, as the format has it


LOCAL, CENTRAL = b"PK\3\4", b"PK\1\2"


def _encrypted(path: Path) -> Path:
    return _patched(_zip(path, ("a.png", b"1" * 99)), (LOCAL, 6, "<H", 1), (CENTRAL, 8, "<H", 1))


def _longer(path: Path) -> Path:
    """Says that it holds fewer bytes than it does."""
    return _patched(_zip(path, ("a.png", b"1" * 99)), (LOCAL, 22, "<L", 10), (CENTRAL, 24, "<L", 10))


def _shorter(path: Path) -> Path:
    return _patched(_zip(path, ("a.png", b"1" * 99)), (LOCAL, 22, "<L", 1000), (CENTRAL, 24, "<L", 1000))


def _cut(path: Path) -> Path:
    whole = gzip.compress(tar_entry("a.png", content=os.urandom(5000)) + bytes(1024))
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _bad_header(path: Path) -> Path:
    """tarfile itself would take this for the end, and say nothing."""
    return _tar(path, tar_entry("a.png", content=b"1"), b"?" * 512, tar_entry("b.png", content=b"1"))


def _text(path: Path) -> Path:
    path.write_bytes(b"<html>404</html>")
    return path


def _long_header(path: Path) -> Path:
    """A name of 40 MB: tarfile would take it into memory, and a thousand times as much."""
    name = bytes(40_000_000)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, len(name)
    path.write_bytes(gzip.compress(info.tobuf() + name + bytes(-len(name) % 512) + tar_entry("a.png"), 1))
    return path


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("a.zip", _encrypted, "is encrypted; unpack it by hand and give the folder"),
        ("a.zip", _longer, "is damaged"),
        ("a.zip", _shorter, "is damaged"),
        ("a.zip", lambda path: _zip(path, ("a.png", b"1"), method=zipfile.ZIP_BZIP2), "compressed in a way"),
        ("a.zip", lambda path: _zip(path, ("a.png", b"1"), method=zipfile.ZIP_LZMA), "compressed in a way"),
        ("a.zip", _text, "is damaged or not an archive"),
        ("a.tar", _text, "is damaged or not an archive"),
        ("a.tar.xz", _text, "is damaged or not an archive"),
        ("a.tar", lambda path: path.touch() or path, "is damaged"),
        ("a.zip", lambda path: path.touch() or path, "is damaged"),
        ("a.tar.gz", _cut, "is damaged"),
        ("a.tar", _bad_header, "is damaged"),
        ("a.tar.gz", _long_header, "is damaged .*a header of 40000000 bytes"),
    ],
)
def test_what_cant_be_unpacked_is_one_clear_line(
    tmp_path: Path, name: str, make: Callable[[Path], Path], told: str
) -> None:
    archive = make(tmp_path / name)
    with pytest.raises(UserError, match=told) as caught:
        unpack(archive, tmp_path / "scratch")
    assert str(archive) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_damage_anywhere_is_found_or_harmless(tmp_path: Path, suffix: str) -> None:
    """No flipped bit and no cut ends in anything but images as they were or a UserError; a plain tar has no sums."""
    whole = {f"{number}.png": bytes([number]) * 300 for number in range(4)}
    path = tmp_path / f"a{suffix}"
    if suffix == ".zip":
        _zip(path, *whole.items())
    else:
        entries = [tar_entry(name, content=content) for name, content in whole.items()]
        path.write_bytes(PACKERS[suffix](b"".join(entries) + bytes(1024)))
    sound = path.read_bytes()
    step = max(1, len(sound) // 75)
    num_found = 0
    for at in range(0, len(sound), step):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        for content in (damaged, sound[:at]):
            path.write_bytes(content)
            try:
                unpacked = unpack(path, tmp_path / "scratch")
                assert suffix == ".tar" or set(_contents(unpacked).values()) <= set(whole.values())
            except UserError:
                num_found += 1
                assert list((tmp_path / "scratch").iterdir()) == []
    assert num_found > 60
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name, "scratch"]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("name", ["a.png", "a.bin"])
def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, name: str) -> None:
    """Also one of other files, in a tar, where stepping over them means unpacking them."""
    monkeypatch.setattr(archives, "RATIO_FROM", 2_000_000)
    path, zeros = tmp_path / f"a{suffix}", bytes(8_000_000)
    if suffix == ".zip":
        _zip(path, (name, zeros), ("b.png", b"1"))
        if name == "a.bin":  # never read
            assert unpack(path, tmp_path / "scratch").members == ("b.png",)
            return
    else:
        path.write_bytes(
            PACKERS[suffix](tar_entry(name, content=zeros) + tar_entry("b.png", content=b"1") + bytes(1024))
        )
    with pytest.raises(UserError, match="would unpack to more than 2,000,000 bytes") as caught:
        unpack(path, tmp_path / "scratch")
    assert str(path) in str(caught.value)
    assert list((tmp_path / "scratch").iterdir()) == []
    monkeypatch.setattr(archives, "RATIO_FROM", 10_000_000)
    assert "b.png" in unpack(path, tmp_path / "scratch").members


def test_a_member_too_large_to_step_over_is_not_stepped_over(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 10**13
    (tmp_path / "a.tgz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)))
    with pytest.raises(UserError, match="would unpack to more than"):  # not that its end is missing
        unpack(tmp_path / "a.tgz", tmp_path / "scratch")


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    files = {"a.png": b"1" * 1000, "b.png": b"2" * 2000}
    path = tmp_path / f"x{suffix}"
    if suffix == ".zip":
        _zip(path, *files.items())
    else:
        _tar(path, *(tar_entry(name, content=content) for name, content in files.items()))
    scratch = tmp_path / "scratch"
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "MAX_BYTES", 1999)
        with pytest.raises(
            UserError, match=r"'b.png' of .* has 2,000 bytes, and no image more than 1,999; unpack it by"
        ):
            unpack(path, scratch)
    with monkeypatch.context() as patch:
        patch.setattr(archives, "MAX_IMAGES", 1)
        with pytest.raises(UserError, match="holds more than 1 images"):
            unpack(path, scratch)
    with monkeypatch.context() as patch:
        needed = (3000 if suffix == ".zip" else 2000) + archives.MARGIN  # a tar is found too large on the way
        patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed - 1))
        told = rf"no room to unpack .*: {needed:,} bytes are needed, {needed - 1:,} are free in .*scratch'"
        with pytest.raises(UserError, match=told):
            unpack(path, scratch)
        patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed))
        assert _contents(unpack(path, scratch)) == files


def test_a_disk_that_fills_up_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, "copy_member", full)
    with pytest.raises(UserError, match=r"can't unpack .*: No space left on device"):
        unpack(_zip(tmp_path / "a.zip", ("a.png", b"1")), tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_workshop_that_cant_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"can't unpack .*: Not a directory"):
        unpack(_zip(tmp_path / "a.zip", ("a.png", b"1")), tmp_path / "file" / "scratch")


def test_an_archive_is_unpacked_anew(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar", tar_entry(b"\xff\n.png", content=b"1"), tar_entry("s.png", tarfile.SYMTYPE, "x"))
    first = unpack(archive, tmp_path / "scratch")
    assert (first.members, len(first.others)) == ((os.fsdecode(b"\xff\n.png"),), 1)
    Path(first.paths[0]).write_bytes(b"")
    assert _contents(unpack(archive, tmp_path / "scratch")) == {first.members[0]: b"1"}
    _tar(archive, tar_entry("new.png", content=b"2"))
    assert _contents(unpack(archive, tmp_path / "scratch")) == {"new.png": b"2"}


def test_one_that_was_broken_off_is_unpacked_anew(tmp_path: Path) -> None:
    class KilledError(BaseException):
        pass

    def kill(done: int, total: int) -> None:
        raise KilledError

    archive = _tar(tmp_path / "a.tar", *(tar_entry(f"{number}.png", content=b"1") for number in range(3)))
    whole = unpack(archive, tmp_path / "scratch")
    (folder,) = (tmp_path / "scratch").iterdir()
    (folder / "0000001.png").write_bytes(b"half")  # as kill -9 leaves it
    (folder / "0000002.png").unlink()
    with pytest.raises(KilledError):
        unpack(archive, tmp_path / "scratch", kill)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert unpack(archive, tmp_path / "scratch") == whole
    assert set(_contents(whole).values()) == {b"1"}


def test_members_are_not_kept_in_memory_one_by_one(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar", *(tar_entry(f"{number:03}.png", content=b"1") for number in range(300)))
    with archive.open("rb") as file:
        for number, member in enumerate(archives.tar_members(archive, file)):
            assert member.name == f"{number:03}.png"
            assert member.open().read() == b"1"
            tar = member.open.args[0]  # type: ignore[attr-defined]
            assert len(tar.members) <= 1
    assert number == 299
