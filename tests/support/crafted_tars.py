"""Entries of tar files as nobody's tar writes them: links, devices, holes."""

import os
import tarfile


def tar_entry(name: str | bytes, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> bytes:
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type, info.linkname, info.size = kind, link, len(content)
    info.devmajor, info.devminor = 1, 3  # /dev/null, where it is a device
    return info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape") + content + bytes(-len(content) % 512)


def sparse_entry(name: str, apparent_size: int) -> bytes:
    """The old GNU form: one hole, no bytes; tarfile can read it but not write it."""
    header = bytearray(tar_entry(name, tarfile.GNUTYPE_SPARSE))
    header[386:410] = b"%011o\0%011o\0" % (apparent_size, 0)
    header[483:495] = b"%011o\0" % apparent_size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
