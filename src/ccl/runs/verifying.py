"""Is a run folder intact? Every file of it: good, mendable, or lost; and how it is mended.

The status, which is sealed, has the SHA-256 of what a run leaves; checkpoints have copies of the small files, and from
a good one everything else is written anew by the command that made the run.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch

from ccl.atomic_files import write_file
from ccl.data import BadImageError, FileSource
from ccl.errors import UserError, counted
from ccl.evaluation import AccuracyMatrix
from ccl.runs.file_types import Protocol, typed
from ccl.runs.folder_lock import LOCK, RUN, SETTINGS, STATUS, as_shown, locked, read_status
from ccl.runs.run_folder import (
    ACCURACY,
    CHECKPOINTS,
    EMBEDDINGS,
    ENCODER,
    MEMORY,
    METRICS,
    PROTOCOL,
    SMALL,
    left_files,
    read_rows,
    sha256_of,
)
from ccl.sealed_json import seal
from ccl.section import flattened
from ccl.settings import differing
from ccl.settings_files import parse_yaml, read_yaml
from ccl.training.checkpoint import CheckpointStore, Finding, UnreadableError

_NOT_COUNTED = "the run does not count on it"
_MARKERS = (SETTINGS, STATUS, CHECKPOINTS)


@dataclass(frozen=True)
class Checked:
    """What was found of a file, a version or a checkpoint."""

    what: str
    state: Literal["good", "mended", "mendable", "lost", "unknown"]  # unknown: nobody counts on it
    about: str = ""


def check_run(folder: Path, repair: bool = False) -> Iterator[Checked]:
    """Check a run folder's files; with `repair`, mend what can be mended. Nothing is deleted."""
    if not any((folder / name).exists() for name in _MARKERS):
        raise UserError(f"{folder} is neither a run folder nor an encoder folder: it has no {SETTINGS}")
    with ExitStack() as held:
        if repair:
            held.enter_context(locked(folder, replace(RUN, markers=_MARKERS)))
        yield from _check(folder, repair)


def _check(folder: Path, repair: bool) -> Iterator[Checked]:
    status, why, is_readable = dict[str, Any](), "it is missing", True
    try:
        if status := read_status(folder):
            why = ""
    except UserError as error:
        why, is_readable = str(error).partition(";")[0], not isinstance(error.__cause__, OSError)
    try:
        findings = CheckpointStore(folder / CHECKPOINTS).check()
    except UnreadableError as error:
        yield Checked(CHECKPOINTS, "lost", error.reason)
        findings = []
    if why and not findings and left_files(folder) in ([SETTINGS], [SETTINGS, PROTOCOL]):
        yield Checked(str(folder), "good", "killed before it began; the same command begins it")
        return
    findings = [replace(one, reason=one.reason or _foreign(folder, status, one)) for one in findings]
    yield from _of_checkpoints(findings)
    good = next((one for one in reversed(findings) if one.reason is None), None)
    copies, source = ({}, "") if good is None else (good.files, f"checkpoint {good.folder.name}")
    mended: Literal["mended", "mendable"] = "mended" if repair else "mendable"
    expected, bad = status.get("files"), list[str]()
    for name in _names(folder, status):
        wrong, is_lost = _wrong(folder, name, expected, copies)
        if wrong in ("", _NOT_COUNTED):
            yield Checked(name, "unknown" if wrong else "good", wrong)
        elif is_lost or not (name in copies or (good and name not in (SETTINGS, ACCURACY))):
            yield Checked(name, "lost", wrong)
        elif name in copies:
            if repair:
                write_file(folder / name, copies[name])
            if expected and hashlib.sha256(copies[name]).hexdigest() != expected.get(name):
                bad.append(name)
            yield Checked(name, mended, f"{wrong}; restored from {source}" if repair else f"{wrong}; {source} has it")
        else:
            bad.append(name)
            yield Checked(name, mended, f"{wrong}; the same command resumes from {source} and writes it anew")
    if good and is_readable and (why or bad):
        if repair:
            _stop(folder, status, bad)
        yield Checked(STATUS, mended, f"{why or 'the run is not whole'}; set to stopped, so that it is resumed")
    else:
        yield Checked(STATUS, "lost" if why else "good", why or str(as_shown(status, folder)["state"]))
    known = {LOCK, STATUS, CHECKPOINTS, MEMORY, *_names(folder, status)}
    for path in sorted(folder.iterdir()):
        if path.name not in known and not path.name.startswith("."):
            yield Checked(path.name, "unknown", _NOT_COUNTED)


def _names(folder: Path, status: Mapping[str, Any]) -> list[str]:
    """The files that should be there, and those that are."""
    return [*dict.fromkeys([SETTINGS, PROTOCOL, *status.get("files", {}), *left_files(folder)])]


def _wrong(
    folder: Path, name: str, expected: Mapping[str, str] | None, copies: Mapping[str, bytes]
) -> tuple[str, bool]:
    """What is wrong with a file, in words, and whether nothing can mend that; empty where nothing is."""
    path = folder / name
    try:
        if not path.exists():
            return "it is missing", False
        content = path.read_bytes()
        if expected is not None and name in expected:
            return "" if hashlib.sha256(content).hexdigest() == expected[name] else "not as the run left it", False
        if expected is not None and name not in SMALL:
            return _NOT_COUNTED, False  # of an unfinished run: written anew at its end
        if name == METRICS and not content.startswith(copies.get(name, b"")):
            return "not the rows of the newest checkpoint", False
        reader = _READERS.get(name, _read_image if name.startswith(f"{MEMORY}/") else None)
        if reader is not None:
            reader(path)
    except OSError as error:
        return f"can't be read: {error.strerror}", True
    except Exception as error:  # NumPy, zipfile and safetensors raise many kinds for broken files
        return str(error).partition("; `ccl verify")[0].removeprefix(f"{path}: ") or type(error).__name__, False
    return "", False


def _read_image(path: Path) -> None:
    try:
        if path.suffix != ".csv":
            FileSource([path]).picture(0)
    except BadImageError as error:
        raise ValueError(error.reason) from error


# Of runs without hashes: those of before, and those that were killed.
_READERS: Mapping[str, Callable[[Path], object]] = {
    SETTINGS: read_yaml,
    PROTOCOL: lambda path: typed(Protocol, json.loads(path.read_bytes())),
    METRICS: lambda path: read_rows(path.parent),
    ACCURACY: AccuracyMatrix.from_csv,
    ENCODER: lambda path: safetensors.torch.load(path.read_bytes()),
    EMBEDDINGS: lambda path: dict(np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)),
}


def _foreign(folder: Path, status: Mapping[str, Any], found: Finding) -> str | None:
    """Why a checkpoint is not of this run, by the settings, where those of the folder are as they were left."""
    path = folder / SETTINGS
    if found.reason or SETTINGS not in found.files or not path.is_file():
        return None
    if status.get("files", {}).get(SETTINGS) != sha256_of(path):
        return None
    theirs, own = flattened(parse_yaml(found.files[SETTINGS].decode(), SETTINGS)), flattened(read_yaml(path))
    both = theirs.keys() & own.keys()
    wrong = differing({name: theirs[name] for name in both}, {name: own[name] for name in both}, " instead of ")
    return f"it is of another run ({'; '.join(wrong)})" if wrong else None


def _stop(folder: Path, status: Mapping[str, Any], bad: Sequence[str]) -> None:
    """Make it a run that is resumed: what is bad is written anew then."""
    files = {name: sha256_of(folder / name) for name in left_files(folder) if name not in bad or name in SMALL}
    write_file(folder / STATUS, seal({**status, "state": "stopped", "reason": "mended by ccl verify", "files": files}))


def check_checkpoints(folder: Path) -> Iterator[Checked]:
    """Check the checkpoints of a run or of a drop under way."""
    yield from _of_checkpoints(CheckpointStore(folder / CHECKPOINTS).check())


def _of_checkpoints(findings: Sequence[Finding]) -> Iterator[Checked]:
    good = next((f"; skipped, as {one.folder.name} is good" for one in reversed(findings) if one.reason is None), "")
    for finding in findings:
        what = f"checkpoint {finding.folder.name}"
        if finding.reason is not None:
            yield Checked(what, "lost", finding.reason + good)
        else:
            size = f"{finding.num_bytes / 1e6:.1f} MB"
            yield Checked(what, "good", f"{size}, {counted(finding.about['position']['step'], 'step')} complete")
