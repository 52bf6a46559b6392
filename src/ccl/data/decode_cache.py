"""What the decoder said of files, remembered between runs, so that an unchanged folder is not decoded again.

A small database in the user's cache folder: CCL_CACHE, else XDG_CACHE_HOME/ccl, else ~/.cache/ccl. It holds some 30
bytes for a sound file and deleting it is always safe. A file is known by its path, size and time of change and by the
decoder's version and limits; anything else about it, also its content, is seen only when it is decoded.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import PIL

from ccl.data import decoding

FILE_NAME = "screening.sqlite3"
# A file changed twice within a tick of the clock looks unchanged: what is younger than this is not remembered.
_SETTLED_NS = 2_000_000_000


def cache_folder() -> Path:
    """Where things may lie that can be made again."""
    chosen = os.environ.get("CCL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccl"


class DecodeResult(NamedTuple):
    """What the decoder said of a file."""

    reason: str = ""  # why it is left out; "" for a sound image
    shorter_side: int = 0  # in pixels, of a sound one


class DecodeCache:
    """DecodeCache on files by their keys.

    Without a usable database nothing is known and nothing kept, and `trouble` says in a line why.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.trouble: str | None = None
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _opened(self) -> sqlite3.Connection | None:
        """The database, made at first need: arrays have no use for one."""
        if self._database is None and self.trouble is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=10)
            self._database.execute("PRAGMA synchronous = OFF")  # a power cut may cost the cache, and no more
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS decoded"
                " (key BLOB PRIMARY KEY, reason TEXT NOT NULL, shorter_side INTEGER NOT NULL) WITHOUT ROWID"
            )
        return self._database

    def known(self, keys: Sequence[bytes | None]) -> dict[bytes, DecodeResult]:
        """The verdicts on those of the keys that have one; at most 999 keys, as older SQLite takes no more values."""
        wanted = [key for key in keys if key is not None]
        question = f"SELECT * FROM decoded WHERE key IN ({','.join('?' * len(wanted))})"
        try:
            database = self._opened() if wanted else None
            return {key: DecodeResult(*row) for key, *row in database.execute(question, wanted)} if database else {}
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
            return {}

    def keep(self, verdicts: Mapping[bytes, DecodeResult]) -> None:
        """Remember these, at once."""
        try:
            if (database := self._opened()) is not None:
                with database:
                    rows = ((key, *verdict) for key, verdict in verdicts.items())
                    database.executemany("INSERT OR REPLACE INTO decoded VALUES (?, ?, ?)", rows)
        except (OSError, sqlite3.Error, UnicodeEncodeError) as error:
            self._give_up(error)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _give_up(self, error: Exception) -> None:
        self._close()
        self.trouble = f"the cache of decoded files {self.path} can't be used and is skipped ({error})"
        # Locked, full or not writable may pass; what is not a sound database will never be one again.
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            self.path.unlink(missing_ok=True)
            self.trouble += "; it is removed, and the next run begins a new one"


def keys_of(names: Sequence[str]) -> list[bytes | None]:
    """What stands for each file as it is now; None where it is absent, or so young that a change could pass unseen."""
    here = os.getcwd()
    keys: list[bytes | None] = []
    for name in names:
        path = os.path.join(here, name)  # leaves absolute names alone
        try:
            about = os.stat(path)
        except OSError:
            keys.append(None)
            continue
        is_remembered = is_settled(about.st_mtime_ns)
        keys.append(key_of(path, about.st_size, about.st_mtime_ns) if is_remembered else None)
    return keys


def is_settled(changed_ns: int) -> bool:
    """Whether a change to a file that was last changed at this time would be seen in its time of change."""
    return changed_ns <= time.time_ns() - _SETTLED_NS


def key_of(path: str, num_bytes: int, changed_ns: int, part: bytes = b"") -> bytes:
    """What stands for an image under this decoder: a file's path, size and time of change, and which part of it."""
    decoder = repr((PIL.__version__, decoding.ALLOWED_FORMATS, decoding.MAX_PIXELS, decoding.MAX_BYTES)).encode()
    whole = b"%b\0%d %d %b%b" % (os.fsencode(path), num_bytes, changed_ns, decoder, part)
    return hashlib.blake2b(whole, digest_size=16).digest()
