"""Files in object stores (s3://, gs://), read by ranges through fsspec, an extra."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from ccl.errors import UserError, how_to_install, require

SCHEMES = ("s3://", "gs://")
_BLOCK = 1 << 22  # bytes that are fetched at one time where a file is read from its beginning to its end


def is_remote(path: str) -> bool:
    """Whether a path leads to a store."""
    return path.startswith(SCHEMES)


def look_up(path: str) -> tuple[int, int]:
    """A file's length, and a stamp that is another for other content, smaller than any present time in nanoseconds."""
    with _errors_as_user_errors(path):
        about = _file_system(path).info(path)
        if about.get("type") == "directory":
            raise FileNotFoundError
    tag = next((about[name] for name in ("ETag", "etag", "LastModified", "updated", "created") if about.get(name)), "")
    digest = hashlib.blake2b(str(tag).encode(), digest_size=7).digest()
    return int(about["size"]), int.from_bytes(digest, "little")


def find(pattern: str) -> list[str]:
    """The files that a glob names in a store, sorted."""
    with _errors_as_user_errors(pattern):
        scheme = pattern[: pattern.index("://") + 3]
        return sorted(f"{scheme}{path.lstrip('/')}" for path in _file_system(pattern).glob(pattern))


def open_remote(path: str) -> BinaryIO:
    """A file of a store, to be read from its beginning on or by seeking."""
    with _errors_as_user_errors(path):
        return cast(BinaryIO, _OpenedFile(path, _file_system(path).open(path, "rb", block_size=_BLOCK)))


class _OpenedFile(io.RawIOBase):
    """A file of a store that may be lost or refused while it is read, too."""

    def __init__(self, path: str, file: Any) -> None:
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with _errors_as_user_errors(self._path):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def read_range(path: str, start: int, num_bytes: int) -> bytes:
    """Some bytes of a file, by one request."""
    with _errors_as_user_errors(path):
        return bytes(_file_system(path).cat_file(path, start=start, end=start + num_bytes))


def _file_system(path: str) -> Any:
    """fsspec keeps one for each store and process."""
    require(["fsspec"], "remote", path[:5])
    import fsspec.core

    return fsspec.core.url_to_fs(path)[0]


@contextmanager
def _errors_as_user_errors(path: str) -> Iterator[None]:
    """A store's errors in one line; they are of many kinds, and some are those of packages that are not imported."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path!r} needs a package that is missing ({why}); {how_to_install('remote')}") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no shard {path!r} in its store") from error
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UserError(f"can't read {path!r} ({why}); are the credentials set, and do they allow it?") from error
