"""Images unpacked from an archive that is not trusted: under our own names, within limits, whole or not at all."""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from ccl.atomic_files import remove
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


class Unpacked(NamedTuple):
    """The images of an archive, sorted by name, folder by folder."""

    members: tuple[str, ...]  # their names within it, as it has them; two may be equal
    paths: tuple[str, ...]  # where they lie now
    others: tuple[str, ...]  # members that are not images by their suffix, or are links, devices and sparse files


class Member(NamedTuple):
    """A file of an archive, or something that is not a file."""

    name: str
    num_bytes: int
    is_plain: bool  # a file, with all its bytes in the archive
    offset: int  # where it begins: in a tar that is not compressed, the first of its bytes
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, scratch: Path, progress: Progress | None = None) -> Unpacked:
    """The images of an archive, unpacked into a folder below `scratch`; one that was broken off is replaced."""
    folder = scratch / hashlib.blake2b(os.fsencode(archive.absolute()), digest_size=16).hexdigest()
    try:
        remove(folder)
        folder.mkdir(parents=True)
        with archive.open("rb") as file:
            return _unpack(archive, file, folder, progress)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, UserError) or not isinstance(error, DAMAGE):
            raise
        if isinstance(error, OSError) and error.strerror and error.errno != errno.EINVAL:  # that is a seek to nowhere
            trouble = f"can't unpack {str(archive)!r} into {str(scratch)!r}: {error.strerror}"
        else:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:160]  # zipfile quotes all of a broken name
            trouble = (
                f"{str(archive)!r} is damaged or not an archive of its suffix ({why}); fetch it again, or {_BY_HAND}"
            )
        raise UserError(trouble) from error


def _unpack(archive: Path, file: BinaryIO, goal: Path, progress: Progress | None) -> Unpacked:
    """Only plain files that are called like images are written, by numbers: an archive can't choose a path."""
    images: list[tuple[str, str]] = []  # name in the archive, path
    others: list[str] = []
    num_bytes = os.fstat(file.fileno()).st_size
    is_zip = archive.name.lower().endswith(".zip")
    for member in _zip_members(archive, file, goal) if is_zip else tar_members(archive, file):
        name = member.name
        if any(is_hidden(part) for part in name.split("/") if part not in (".", "..")):
            continue
        if not is_image_name(name) or not member.is_plain:
            others.append(name)
        elif len(images) == MAX_IMAGES:
            raise UserError(f"{str(archive)!r} holds more than {MAX_IMAGES:,} images; split it")
        elif member.num_bytes > decoding.MAX_BYTES:
            raise UserError(
                f"{name!r} of {str(archive)!r} has {member.num_bytes:,} bytes, and no image more than "
                f"{decoding.MAX_BYTES:,}; {_BY_HAND}, without this file"
            )
        else:
            _check_room(archive, goal, member.num_bytes)
            path = goal / f"{len(images):07}{os.path.splitext(name)[1].lower()}"
            copy_member(member, path)
            images.append((name, str(path)))
            if progress is not None:
                progress(min(file.tell(), num_bytes), num_bytes)
    images.sort(key=lambda image: (image[0].split("/"), image[1]))
    names, paths = tuple(name for name, _ in images), tuple(path for _, path in images)
    return Unpacked(names, paths, tuple(sorted(others)))


def copy_member(member: Member, goal: Path) -> None:
    """Write a member to a new file, and no more of it than it says it has."""
    written = 0
    with member.open() as content, goal.open("xb") as file:
        while written <= member.num_bytes and (chunk := content.read(_CHUNK)):
            written += file.write(chunk)
    if written != member.num_bytes:
        raise EOFError(f"{member.name!r} does not have the {member.num_bytes} bytes it should have")


def _check_room(archive: Path, folder: Path, num_bytes: int) -> None:
    if num_bytes + MARGIN > (free := shutil.disk_usage(folder).free):
        raise UserError(
            f"no room to unpack {str(archive)!r}: {num_bytes + MARGIN:,} bytes are needed, {free:,} are free "
            f"in {str(folder.parent)!r}"
        )


def _check_ratio(archive: Path, num_packed: int, num_bytes: int) -> None:
    if num_bytes > (most := max(RATIO_FROM, MAX_RATIO * num_packed)):
        raise UserError(
            f"{str(archive)!r} would unpack to more than {most:,} bytes, far more than its own size suggests, and is "
            f"refused; if you trust it, {_BY_HAND}"
        )


def _zip_members(path: Path, file: BinaryIO, goal: Path) -> Iterator[Member]:
    """All that is in a zip, in the order in which it lies there; what can't be unpacked is refused at once."""
    with zipfile.ZipFile(file) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        images = [entry for entry in entries if is_image_name(entry.filename)]
        wanted = sum(entry.file_size for entry in images)
        _check_ratio(path, path.stat().st_size, wanted)
        _check_room(path, goal, wanted)
        if any(entry.flag_bits & 1 for entry in images):
            raise UserError(f"{str(path)!r} is encrypted; {_BY_HAND}")
        # zipfile unpacks the other methods without a bound on memory.
        if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in images):
            raise UserError(f"{str(path)!r} is compressed in a way that is not read here; {_BY_HAND}")
        for entry in entries:
            if not entry.is_dir():
                kind = stat.S_IFMT(entry.external_attr >> 16)  # 0 where the writer has no such kinds
                is_plain = kind in (0, stat.S_IFREG)
                yield Member(
                    entry.filename, entry.file_size, is_plain, entry.header_offset, partial(archive.open, entry)
                )


def tar_members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """All that is in a tar, whatever it is compressed with, in one pass.

    Sparse files are not plain here, though they are to tarfile: a few bytes can stand for terabytes.
    """
    start, num_packed = file.read(6), file.seek(0, os.SEEK_END)
    file.seek(0)
    decompress = next((opener for magic, opener in COMPRESSIONS.items() if start.startswith(magic)), None)
    stream = _Bounded(file if decompress is None else cast(BinaryIO, decompress(file)), path, num_packed)
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
        while (entry := archive.next()) is not None:
            if not entry.isdir():
                is_plain = entry.isreg() and not entry.issparse()
                name, opened = entry.name.removeprefix("./"), partial(tarfile.ExFileObject, archive, entry)
                yield Member(name, entry.size, is_plain, entry.offset_data, opened)
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        # tarfile takes a damaged header for the end.
        stream.seek(archive.offset)
        if any(stream.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"no header at byte {archive.offset}")
        while stream.read(_CHUNK):  # to the very end, where a compressed one has the sum of its bytes
            pass


class _Bounded:
    """A tar's bytes up to a limit, and not too many at once: tarfile itself would unpack a bomb to step over it."""

    def __init__(self, stream: BinaryIO, path: Path, num_packed: int) -> None:
        self._stream, self._check = stream, partial(_check_ratio, path, num_packed)
        self.tell = stream.tell

    def seek(self, offset: int) -> int:
        self._check(offset)
        return self._stream.seek(offset)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        self._check(self.tell() + size)
        return self._stream.read(size)
