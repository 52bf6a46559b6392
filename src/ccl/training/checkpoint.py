"""Checkpoints that are either whole or not there: written aside, hashed, moved into place, verified before use.

A checkpoint is `checkpoints/00000012/` with `state.safetensors`, the caller's small files and `manifest.json`: size and
SHA-256 of each, and a SHA-256 of itself. One process at a time: the caller holds the run's lock.
"""

import hashlib
import os
import re
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ccl.atomic_files import DiskFullError, remove, sync, write_folder
from ccl.errors import UserError
from ccl.sealed_json import seal, unseal

FORMAT = 1
STATE, MANIFEST = "state.safetensors", "manifest.json"
SAVING, PRUNING = ".saving-", ".pruning-"  # never taken for a checkpoint: those are eight digits
MARGIN = 2**20  # bytes to leave free: room for folders and for the rows of the metrics
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # no separator and no leading dot: stays in its folder


class _UnusableError(UserError):
    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class DamagedError(_UnusableError):
    """A checkpoint is not there or not as it was saved."""


class UnreadableError(_UnusableError):
    """A checkpoint may be whole, and may not be read."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(path, f"can't be read: {error.strerror}")


class NewerError(_UnusableError):
    """A checkpoint is whole, and this ccl can't know what it means."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory; every tensor owns its memory, on the CPU."""

    number: int
    folder: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]  # JSON values, as `save` was given
    files: dict[str, bytes] = field(default_factory=dict)  # the small files, as `save` was given
    sha256: str = ""  # of its manifest, which has those of all else


@dataclass(frozen=True)
class Finding:
    """The finding of `check` on one checkpoint."""

    number: int
    folder: Path
    num_bytes: int  # on the disk, all files
    reason: str | None  # what is wrong with it; None where it is good
    about: dict[str, Any]  # empty where it is bad
    files: dict[str, bytes]  # the small files, likewise


class CheckpointStore:
    """The checkpoints of one run; their numbers only grow."""

    def __init__(self, folder: Path, keep: int | None = 2) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, is {keep}")
        self.folder, self.keep = folder, keep
        self._bad: dict[Path, tuple[Path, str]] = {}  # by the checkpoint's folder

    @property
    def bad(self) -> list[tuple[Path, str]]:
        """The file and the reason of each bad checkpoint that the last `newest` met."""
        return list(self._bad.values())

    def save(
        self,
        tensors: Mapping[str, Tensor],
        about: Mapping[str, Any],
        files: Mapping[str, bytes] = {},
        number: int | None = None,
    ) -> Path:
        """Write the next checkpoint and prune the oldest; a kill at any moment leaves the one before it good."""
        if wrong := [name for name in files if not _PLAIN_NAME.fullmatch(name) or name in (STATE, MANIFEST)]:
            raise ValueError(f"not names for files of a checkpoint: {wrong}")
        self.folder.mkdir(parents=True, exist_ok=True)
        sync(self.folder.parent)
        number = max(self.numbers(), default=0) + 1 if number is None else number
        path, unfinished = self.folder / f"{number:08d}", self.folder / f"{SAVING}{os.getpid()}-{number}"
        # Contiguous copies on the CPU: safetensors refuses gaps, and two tensors in the same memory.
        layout = torch.contiguous_format
        apart = {name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()}
        contents = {STATE: safetensors.torch.save(apart), **files}
        contents[MANIFEST] = _manifest(number, about, contents)
        needed = sum(map(len, contents.values())) + MARGIN
        if shutil.disk_usage(self.folder).free < needed:
            raise DiskFullError(path, needed, "disk full")
        write_folder(path, contents, unfinished)  # on the disk before an old one is removed
        self._bad.pop(path, None)  # where a bad one of this number was removed by hand
        self._prune()
        return path

    def load(self, number: int) -> Checkpoint:
        """Load and verify a checkpoint by its number; raises DamagedError where it is missing or damaged."""
        return _load(self.folder / f"{number:08d}")

    def describe(self, number: int) -> tuple[dict[str, Any], str]:
        """What a checkpoint says of itself, and the SHA-256 of its manifest; nothing else of it is read."""
        manifest, sha256 = _read_manifest(self.folder / f"{number:08d}" / MANIFEST)
        return manifest["about"], sha256

    def remove(self, number: int) -> None:
        """Delete a checkpoint by its number; a kill half-way leaves nothing that looks like a checkpoint."""
        folder = self.folder / f"{number:08d}"
        if folder in self._present():
            remove(folder.rename(self.folder / f"{PRUNING}{os.getpid()}-{folder.name}"))

    def numbers(self) -> list[int]:
        """The numbers of all checkpoints, good or not, ascending."""
        return [int(folder.name) for folder in self._present()]

    def newest(self) -> Checkpoint | None:
        """The newest that verifies, None where there is none at all; raises UserError where none of them is good."""
        self._bad = {}
        for folder in reversed(self._present()):
            try:
                return _load(folder)
            except DamagedError as error:
                self._bad[folder] = error.path, error.reason
        if self._bad:
            lines = [f"{path}: {reason}" for path, reason in self.bad]
            raise UserError(f"{self.folder}: no good checkpoint left; move it away to begin anew", *lines)
        return None

    def check(self) -> list[Finding]:
        """Verify all checkpoints, the oldest first."""
        findings = []
        for folder in self._present():
            about, files, reason = dict[str, Any](), dict[str, bytes](), None
            try:
                checkpoint = _load(folder)
                about, files = checkpoint.about, checkpoint.files
            except _UnusableError as error:
                reason = f"{error.path.name}: {error.reason}"
            num_bytes = sum(path.lstat().st_size for path in folder.glob("*"))
            findings.append(Finding(int(folder.name), folder, num_bytes, reason, about, files))
        return findings

    def clean(self) -> None:
        """Remove what a killed save or prune left behind."""
        for leftover in [*self.folder.glob(f"{SAVING}*"), *self.folder.glob(f"{PRUNING}*")]:
            remove(leftover)

    def _present(self) -> list[Path]:
        """Everything that bears a checkpoint's name, good or not, the oldest first."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:  # there may be some: never to be taken for none
            raise UnreadableError(self.folder, error) from error
        return [self.folder / name for name in sorted(names) if re.fullmatch(r"[0-9]{8}", name, re.ASCII)]

    def _prune(self) -> None:
        """Remove all before the last `keep`, not counting known bad ones; half a folder never keeps its name."""
        if self.keep is None:
            return
        present = self._present()
        kept = [folder for folder in present if folder not in self._bad][-self.keep :]
        for folder in present[: present.index(kept[0])]:
            self.remove(int(folder.name))


def _manifest(number: int, about: Mapping[str, Any], contents: Mapping[str, bytes]) -> bytes:
    files = {name: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in contents.items()}
    return seal({"format": FORMAT, "number": number, "created": time.time(), "files": files, "about": dict(about)})


def _load(folder: Path) -> Checkpoint:
    """Verify everything, then parse the same bytes."""
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedError(folder, "not a folder")
    manifest, sha256 = _read_manifest(folder / MANIFEST)
    files = {name: _read(folder / name, entry) for name, entry in manifest["files"].items()}
    try:
        parsed = safetensors.torch.load(files.pop(STATE))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise DamagedError(folder / STATE, f"not safetensors: {str(error)[:160]!r}") from error
    # Copied, because parsed tensors lie at odd addresses, and a matrix product may round differently there.
    tensors = {name: parsed[name].clone() for name in sorted(parsed)}
    return Checkpoint(int(folder.name), folder, tensors, manifest["about"], files, sha256)


def _read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest, and the SHA-256 of its file."""
    content = _read(path)
    try:
        manifest = unseal(content)
        # Formats to come keep the lines above, so that a newer one is not taken for a damaged one.
        if manifest["format"] > FORMAT:
            formats = f"format {manifest['format']}, known are up to {FORMAT}"
            raise NewerError(path, f"made by a newer ccl ({formats}); update ccl to read it")
        files, is_this = manifest["files"], (manifest["format"], manifest["number"]) == (FORMAT, int(path.parent.name))
        if not is_this or STATE not in files or not isinstance(manifest["about"], dict):
            raise DamagedError(path, "not the manifest of this checkpoint")
        if not all(_PLAIN_NAME.fullmatch(name) and item.keys() == {"bytes", "sha256"} for name, item in files.items()):
            raise DamagedError(path, "names a file outside its folder, or without size and SHA-256")
    except _UnusableError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(path, f"not a manifest: {type(error).__name__} {str(error)[:160]!r}") from error
    return manifest, hashlib.sha256(content).hexdigest()


def _read(path: Path, entry: Mapping[str, Any] | None = None) -> bytes:
    """A plain file, as its entry says; never through a link, which may lead out of the folder, nor from a pipe."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(path, "not a plain file")
        if entry is not None and status.st_size != entry["bytes"]:
            raise DamagedError(path, f"has {status.st_size} bytes instead of {str(entry['bytes'])[:20]}")
        content = path.read_bytes()
    except PermissionError as error:
        raise UnreadableError(path, error) from error
    except OSError as error:
        raise DamagedError(path, error.strerror or "can't be read") from error
    if entry is not None and hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedError(path, "its SHA-256 is not the manifest's")
    return content


def joined_parts(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The state of each part as a checkpoint's tensors "part/name"."""
    return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A checkpoint's tensors "part/name" by part; one that is not there is empty."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = value
    return parts
