"""An archive fetched, checked and unpacked in such a way that nothing half-done or foreign is left behind."""

import hashlib
import http.client
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from ccl.atomic_files import move_into_place
from ccl.data.archives import DAMAGE, copy_member, tar_members
from ccl.data.dataset import Progress
from ccl.errors import UserError

_CHUNK = 1 << 20
_TIMEOUT = 30  # seconds without a byte


def fetch_archive(
    url: str, archive_md5: str, root: Path, folder: str, members: Mapping[str, str], progress: Progress | None = None
) -> None:
    """Put the members `folder/<member>` of a .tar.gz into root/folder.

    All work is done in a temporary folder beside the goal; files move into place by atomic renames, at the very end.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch:
            archive = Path(scratch) / "archive.tar.gz"
            digest = _download(url, archive, progress)
            if digest != archive_md5:
                raise UserError(f"what {url} sent has md5 {digest}, not {archive_md5}; try again later")
            unpacked = _unpack(archive, Path(scratch) / "unpacked", folder, members)
            (root / folder).mkdir(exist_ok=True)
            for member in members:
                move_into_place(unpacked / member, root / folder / member)
    except UserError:
        raise
    except (*DAMAGE, http.client.HTTPException) as error:  # a URLError is an OSError
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
    """Only plain files with the known names are written, under those names: the archive can't choose a path."""
    goal.mkdir()
    with archive.open("rb") as file:
        for member in tar_members(archive, file):
            parent, _, name = member.name.rpartition("/")
            if parent == folder and name in members and member.is_plain:
                copy_member(member, goal / name)
    missing = [name for name in members if not (goal / name).is_file()]
    if missing:
        raise UserError(f"the archive lacks {folder}/{missing[0]}")
    return goal
