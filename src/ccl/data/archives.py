"""Images unpacked from an archive that is not trusted: under our own names, within limits, whole or not at all."""

import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from ccl.atomic_files import remove, write_file
from ccl.data import decoding
from ccl.data.dataset import Progress
from ccl.data.decoding import is_image_name
from ccl.data.folders import is_hidden
from ccl.errors import UserError

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_IMAGES = 5_000_000
MAX_RATIO = 100  # of what an archive unpacks to, to its own size …
RATIO_FROM = 1 << 30  # … where it unpacks to more bytes than these
MARGIN = 1 << 28  # bytes to leave free on the disk
_MAX_HEADER = 1 << 24  # bytes; tarfile reads a header at once, however long it says it is
_CHUNK = 1 << 20
_MANIFEST = "unpacked.json"
_BY_HAND = "unpack it by hand and give the folder"
COMPRESSIONS: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
# What the readers of both formats raise for damaged input; a UserError is a ValueError and passes before.
DAMAGE = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError),
    *(struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


def is_archive_name(name: str) -> bool:
    """Whether a file is to be taken for an archive, as its suffix says."""
    return name.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class Unpacked:
    """The images of an archive, sorted by name, folder by folder."""

    members: tuple[str, ...]  # their names within it, as it has them; two may be equal
    paths: tuple[str, ...]  # where they lie now
    others: tuple[str, ...]  # members that are not images by their suffix
    num_special: int  # links, devices and sparse files that are called like images


class Member(NamedTuple):
    """A file of an archive, or something that is not a file."""

    name: str
    num_bytes: int
    is_plain: bool  # a file, with all its bytes in the archive
    offset: int  # where it begins: in a tar that is not compressed, the first of its bytes
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, scratch: Path, progress: Progress | None = None) -> Unpacked:
    """The images of an archive, unpacked into a folder below `scratch`, or found there as unpacked before.

    What is there is used only if it is complete, i.e. has a manifest, which is written last, and the files that it
    names, and if the archive still has the same size and time of change.
    """
    try:
        folder = scratch / _key(archive)
        if (unpacked := _reopened(folder)) is None:
            remove(folder)
            folder.mkdir(parents=True)
            try:
                _unpack(archive, folder, progress)
            except BaseException:
                remove(folder)
                raise
            unpacked = _reopened(folder)
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(_explained(archive, scratch, error)) from error
    assert unpacked is not None
    return unpacked


def _key(archive: Path) -> str:
    about = archive.stat()
    whole = b"%b\0%d %d %d" % (os.fsencode(archive.absolute()), about.st_size, about.st_mtime_ns, about.st_ino)
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def _explained(archive: Path, scratch: Path, error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room to unpack {str(archive)!r}: {_free(scratch):,} bytes are free in {str(scratch)!r}"
    if isinstance(error, OSError) and error.strerror and error.errno != errno.EINVAL:  # that is a seek to nowhere
        return f"can't unpack {str(archive)!r} into {str(scratch)!r}: {error.strerror}"
    why = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{str(archive)!r} is damaged or not an archive of its suffix ({why}); fetch it again, or {_BY_HAND}"


def _file_name(number: int, member: str) -> str:
    return f"{number:07}{os.path.splitext(member)[1].lower()}"


def _reopened(folder: Path) -> Unpacked | None:
    """What was unpacked before, or None where a file of it is not there as it was written."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        members = [name for name, _, _ in manifest["images"]]
        paths = [os.path.join(folder, _file_name(number, name)) for name, number, _ in manifest["images"]]
        if any(os.stat(path).st_size != row[2] for path, row in zip(paths, manifest["images"], strict=True)):
            return None
        return Unpacked(tuple(members), tuple(paths), tuple(manifest["others"]), manifest["special"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _unpack(archive: Path, goal: Path, progress: Progress | None) -> None:
    """Only plain files that are called like images are written, by numbers: an archive can't choose a path."""
    images: list[tuple[str, int, int]] = []
    others: list[str] = []
    num_special = 0
    with archive.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        is_zip = archive.name.lower().endswith(".zip")
        for member in _zip_members(archive, file, goal) if is_zip else tar_members(archive, file):
            if any(is_hidden(part) for part in member.name.split("/") if part not in (".", "..")):
                continue
            if not is_image_name(member.name):
                others.append(member.name)
            elif not member.is_plain:
                num_special += 1
            else:
                if len(images) == MAX_IMAGES:
                    raise UserError(f"{str(archive)!r} holds more than {MAX_IMAGES:,} images; split it")
                _write(archive, member, goal / _file_name(len(images), member.name))
                images.append((member.name, len(images), member.num_bytes))
                if progress is not None:
                    progress(min(file.tell(), num_bytes), num_bytes)
    images.sort(key=lambda row: (row[0].split("/"), row[1]))
    manifest = {"images": images, "others": sorted(others), "special": num_special}
    write_file(goal / _MANIFEST, json.dumps(manifest))  # ASCII, whatever bytes the names hold


def _write(archive: Path, member: Member, goal: Path) -> None:
    if member.num_bytes > decoding.MAX_BYTES:
        raise UserError(
            f"{member.name!r} of {str(archive)!r} has {member.num_bytes:,} bytes, and no image more than "
            f"{decoding.MAX_BYTES:,}; {_BY_HAND}, without this file"
        )
    _check_room(archive, goal.parent, member.num_bytes)
    copy_member(member, goal)


def copy_member(member: Member, goal: Path) -> None:
    """Write a member to a new file, and no more of it than it says it has."""
    written = 0
    with member.open() as content, goal.open("xb") as file:
        while chunk := content.read(_CHUNK):
            written += file.write(chunk)
            if written > member.num_bytes:
                break
    if written != member.num_bytes:
        raise EOFError(f"{member.name!r} does not have the {member.num_bytes} bytes it should have")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _check_room(archive: Path, folder: Path, num_bytes: int) -> None:
    if num_bytes + MARGIN > (free := _free(folder)):
        raise UserError(
            f"no room to unpack {str(archive)!r}: {num_bytes + MARGIN:,} bytes are needed, {free:,} are free "
            f"in {str(folder.parent)!r}"
        )


def _limit(file: BinaryIO) -> int:
    position = file.tell()
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(position)
    return max(RATIO_FROM, MAX_RATIO * num_bytes)


def _bomb(archive: str, limit: int) -> UserError:
    return UserError(
        f"{archive!r} would unpack to more than {limit:,} bytes, far more than its own size suggests, and is refused; "
        f"if you trust it, {_BY_HAND}"
    )


def _zip_members(path: Path, file: BinaryIO, goal: Path) -> Iterator[Member]:
    """All that is in a zip, in the order in which it lies there; whether there is room is known at once."""
    with zipfile.ZipFile(file) as archive:
        wanted = sum(entry.file_size for entry in archive.infolist() if is_image_name(entry.filename))
        if wanted > (limit := _limit(file)):
            raise _bomb(str(path), limit)
        _check_room(path, goal, wanted)

        def opened(entry: zipfile.ZipInfo) -> IO[bytes]:
            if entry.flag_bits & 1:
                raise UserError(f"{str(path)!r} is encrypted; {_BY_HAND}")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile unpacks the other methods without a bound on memory.
                raise UserError(f"{str(path)!r} is compressed in a way that is not read here; {_BY_HAND}")
            return archive.open(entry)

        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            if not entry.is_dir():
                kind = stat.S_IFMT(entry.external_attr >> 16)  # 0 where the writer has no such kinds
                is_plain = kind in (0, stat.S_IFREG)
                yield Member(entry.filename, entry.file_size, is_plain, entry.header_offset, partial(opened, entry))


def tar_members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """All that is in a tar, whatever it is compressed with, in one pass.

    Sparse files are not plain here, though they are to tarfile: a few bytes can stand for terabytes.
    """
    start = file.read(6)
    file.seek(0)
    decompress = next((opener for magic, opener in COMPRESSIONS.items() if start.startswith(magic)), None)
    stream = _Bounded(file if decompress is None else cast(BinaryIO, decompress(file)), str(path), _limit(file))
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
        while (entry := archive.next()) is not None:
            if not entry.isdir():
                is_plain = entry.isreg() and not entry.issparse()
                name = entry.name.removeprefix("./")
                yield Member(name, entry.size, is_plain, entry.offset_data, partial(_content, archive, entry))
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        # tarfile takes a damaged header for the end.
        stream.seek(archive.offset)
        if any(stream.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"no header at byte {archive.offset}")
        while stream.read(_CHUNK):  # to the very end, where a compressed one has the sum of its bytes
            pass


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(entry)
    assert content is not None  # None is for what is not plain
    return content


class _Bounded(io.RawIOBase):
    """A tar's bytes up to a limit, and not too many at once: tarfile itself would unpack a bomb to step over it."""

    def __init__(self, stream: BinaryIO, name: str, limit: int) -> None:
        self._stream, self._name, self._limit = stream, name, limit

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if offset > self._limit:
            raise _bomb(self._name, self._limit)
        return self._stream.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        if self.tell() + size > self._limit:
            raise _bomb(self._name, self._limit)
        return self._stream.read(size)
