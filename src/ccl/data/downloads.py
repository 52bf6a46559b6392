"""An archive fetched, checked and unpacked in such a way that nothing half-done or foreign is left behind."""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path

from ccl.data.dataset import Progress
from ccl.errors import UserError

_CHUNK = 1 << 20
_TIMEOUT = 30  # seconds without a byte
_MAX_MEMBER = 1 << 30  # bytes; the largest known member, the training part of CIFAR-100, has 155 million


def fetch_archive(
    url: str, archive_md5: str, root: Path, folder: str, members: Mapping[str, str], progress: Progress | None = None
) -> None:
    """Put the members `folder/<member>` of a .tar.gz into root/folder.

    All work is done in a temporary folder beside the goal; files move into place by atomic renames, at the very end.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as workshop:
            archive = Path(workshop) / "archive.tar.gz"
            digest = _download(url, archive, progress)
            if digest != archive_md5:
                raise UserError(f"what {url} sent has md5 {digest}, not {archive_md5}; try again later")
            unpacked = _unpack(archive, Path(workshop) / "unpacked", folder, members)
            (root / folder).mkdir(exist_ok=True)
            for member in members:
                os.replace(unpacked / member, root / folder / member)
    except UserError:
        raise
    # An URLError is an OSError; the reason is what the user can act on. tarfile lets some ValueErrors through.
    except (OSError, http.client.HTTPException, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"can't download {url} to {root}: {' '.join(str(error).split())}") from error


def _download(url: str, goal: Path, progress: Progress | None) -> str:
    """Write the bytes to a file and return their md5."""
    state = hashlib.md5(usedforsecurity=False)
    done = 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, goal.open("wb") as file:
        total = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            state.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return state.hexdigest()


def _unpack(archive: Path, goal: Path, folder: str, members: Mapping[str, str]) -> Path:
    """Only regular files with the known names are written, under those names: the archive can't choose a path.

    Sparse files are no regular ones here, though tarfile counts them so: a few bytes can stand for terabytes.
    """
    goal.mkdir()
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            parent, _, member = entry.name.removeprefix("./").rpartition("/")
            if parent != folder or member not in members or not entry.isreg() or entry.issparse():
                continue
            if entry.size > _MAX_MEMBER:
                raise UserError(f"{entry.name} of the archive has {entry.size:,} bytes, more than {_MAX_MEMBER:,}")
            content = tar.extractfile(entry)
            if content is not None:
                with content, (goal / member).open("wb") as file:
                    shutil.copyfileobj(content, file, _CHUNK)
    missing = [member for member in members if not (goal / member).is_file()]
    if missing:
        raise UserError(f"the archive lacks {folder}/{missing[0]}")
    return goal
