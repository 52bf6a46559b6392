"""Is an encoder folder intact? Every file of it: good, mendable, or lost; and how it is mended."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from ccl.atomic_files import write_file
from ccl.continual_encoder.folder import (
    ASKED,
    CLASSIFIERS,
    ENCODER,
    LEARNING,
    PAGE,
    SEEN,
    STEPS,
    EncoderFolder,
)
from ccl.continual_encoder.folder_page import is_whole_page, write_page
from ccl.continual_encoder.learn_drop import read_begun
from ccl.continual_encoder.ledger import (
    BEFORE,
    LEARNED,
    LEDGER,
    REFUSED,
    ROLLED_BACK,
    STARTED,
    UNSEALED,
    VERSIONS,
    DamagedLedgerError,
    Ledger,
    read_before,
)
from ccl.continual_encoder.probe_classifiers import SUFFIX, load_classifier
from ccl.data import BadImageError, EncodedSource
from ccl.errors import UserError
from ccl.memory import RehearsalMemory
from ccl.runs.folder_lock import LOCK, SETTINGS, locked
from ccl.runs.verifying import Checked, check_checkpoints
from ccl.training.checkpoint import Checkpoint, DamagedError, by_part

_KNOWN = {LEDGER, BEFORE, UNSEALED, VERSIONS, SEEN, STEPS, LEARNING, SETTINGS, PAGE, CLASSIFIERS, LOCK}


def check_encoder(folder: EncoderFolder, repair: bool = False) -> Iterator[Checked]:
    """Check an encoder folder's files; with `repair`, mend what can be mended. Nothing is ever deleted."""
    with ExitStack() as held:
        if repair:
            held.enter_context(locked(folder.path, ENCODER))
        ledger, found = _ledger(folder, repair)
        yield from found
        good: dict[int, Checkpoint] = {}
        for number in folder.versions.numbers():
            yield (found_version := _version(folder, ledger, number, good))
            is_lost = found_version.state == "lost" and "can't be read" not in found_version.about
            if is_lost and number == ledger.current:
                newest = next((n for n in reversed(list(good)) if n not in ledger.candidates), None)
                way_out = "none is left" if newest is None else f"`ccl rollback {folder.path}` returns to a good one"
                yield Checked(f"the current version {number}", "lost", way_out)
        if ledger.current not in [0, *folder.versions.numbers()]:
            there = f"missing; there are {folder.listed(ledger)}"
            yield Checked(f"the current version {ledger.current}", "lost", there)
        yield from _of_drops(folder, ledger)
        for path in sorted((folder.path / CLASSIFIERS).glob(f"[!.]*{SUFFIX}")):
            try:
                load_classifier(path)
                yield Checked(f"{CLASSIFIERS}/{path.name}", "good")
            except UserError as error:
                yield Checked(f"{CLASSIFIERS}/{path.name}", "lost", f"{error}; fit it again with ccl probe")
        if ledger.current in good:
            yield from _copies(folder, good[ledger.current], repair)
        if folder.learning.exists():
            try:
                begun = read_begun(folder, ledger.identity)
                yield Checked(f"{LEARNING}/", "good", f"drop {begun.get('name')!r} is under way")
            except UserError as error:
                yield Checked(f"{LEARNING}/", "lost", str(error))
            yield from check_checkpoints(folder.learning)
        for path in sorted(folder.path.iterdir()):
            if path.name not in _KNOWN and not path.name.startswith("."):
                yield Checked(path.name, "unknown", "not a file of ccl's")


def _ledger(folder: EncoderFolder, repair: bool) -> tuple[Ledger, list[Checked]]:
    """The ledger, or where it is damaged what it can be rebuilt to."""
    path = folder.path
    try:
        ledger = folder.ledger()
    except DamagedLedgerError as error:
        ledger, how = rebuilt(folder)
        if not repair:
            return ledger, [Checked(LEDGER, "mendable", f"{error.why}; {how}")]
        for name in (LEDGER, UNSEALED):  # set aside, not to be taken for the one before
            if (path / name).exists():
                (path / name).replace(path / f".{name}.damaged")
        folder.write(ledger)
        return ledger, [Checked(LEDGER, "mended", how)]
    found = [Checked(LEDGER, "good", f"version {ledger.current} is current, {len(ledger.events)} events")]
    try:
        if (path / BEFORE).exists():
            read_before(path)
    except DamagedLedgerError as error:
        if repair:
            write_file(path / BEFORE, (path / LEDGER).read_bytes())
        found.append(Checked(BEFORE, "mended" if repair else "mendable", error.why))
    return ledger, found


def rebuilt(folder: EncoderFolder) -> tuple[Ledger, str]:
    """The ledger before the last, with the good versions that it does not know; without it, from the versions alone."""
    good: dict[int, Checkpoint] = {}
    for number in folder.versions.numbers():
        with suppress(UserError):
            good[number] = folder.versions.load(number)
    try:
        ledger, source = read_before(folder.path), f"from {BEFORE}"
    except DamagedLedgerError:
        own = [version.about["folder"] for version in good.values() if "folder" in version.about]
        if not good:
            raise UserError(f"{folder.path} has no good version to rebuild its ledger from; move it away") from None
        ledger = Ledger(identity=max(own, key=own.count)) if own else Ledger()  # what most of them say
        source = "from the versions, what was pinned is forgotten"
    added = []
    for number, version in good.items():
        about, parent = version.about, version.about.get("parent_sha256")
        is_own = about.get("folder", ledger.identity) == ledger.identity
        if number not in ledger.hashes and is_own and parent in (None, ledger.hashes.get(about["parent"], parent)):
            _record(ledger, number, about)
            ledger.hashes[number], ledger.latest = version.sha256, max(ledger.latest, number)
            added.append(str(number))
    versions = f" and version {', '.join(added)}" if added and BEFORE in source else ""
    return ledger, f"rebuilt {source}{versions}; version {ledger.current} is current"


def _record(ledger: Ledger, number: int, about: Mapping[str, Any]) -> None:
    """Append the event that made this version, after a return to the one that it was learned on."""
    steps, ledger.asked = about["steps"], dict(about.get(ASKED, {}))
    if steps and about["parent"] != ledger.current and about["parent"] in ledger.hashes:
        ledger.record(ROLLED_BACK, version=about["parent"], before=ledger.current)
        ledger.current = about["parent"]
        ledger.events[-1]["when"] = about["created"]
    if not steps:
        ledger.record(STARTED, version=number, **about.get(STARTED, {}))
    elif about.get(REFUSED):
        ledger.record(REFUSED, reason=about[REFUSED], **steps[-1])
    else:
        ledger.current = number
        ledger.record(LEARNED, **steps[-1])
    ledger.events[-1]["when"] = about["created"]


def _version(folder: EncoderFolder, ledger: Ledger, number: int, good: dict[int, Checkpoint]) -> Checked:
    what = f"version {number}"
    if number not in folder.numbers(ledger):
        return Checked(what, "unknown", "the ledger does not name it: nothing uses it")
    try:
        version = folder.loaded(number, ledger)
        folder.seen(version)
        memory = RehearsalMemory()
        memory.load_state_dict(by_part(version.tensors)["memory"])
        source = EncodedSource(memory.files, memory.ids)
        for position in range(len(source)):
            source.picture(position)
    except DamagedError as error:
        return Checked(what, "lost", f"{error.path.name}: {error.reason}")
    except (UserError, BadImageError) as error:
        return Checked(what, "lost", str(error))
    good[number] = version
    size = sum(path.stat().st_size for path in version.folder.iterdir()) / 1e6
    kind = "a candidate, " if number in ledger.candidates else ""
    return Checked(what, "good", f"{kind}{len(version.about['steps'])} drops, {size:.1f} MB")


def _of_drops(folder: EncoderFolder, ledger: Ledger) -> Iterator[Checked]:
    """What is kept of each drop beside its version, which the page alone shows."""
    for event in ledger.events:
        for name, sha256 in event.get("files", {}).items():
            path = folder.path / STEPS / f"{event['version']:08d}" / name
            what = f"{STEPS}/{path.parent.name}/{name}"
            try:
                is_good = hashlib.sha256(path.read_bytes()).hexdigest() == sha256
                yield Checked(what, "good") if is_good else Checked(what, "lost", "not as it was written; only shown")
            except OSError as error:
                yield Checked(what, "lost", f"can't be read: {error.strerror}; only shown")


def _copies(folder: EncoderFolder, version: Checkpoint, repair: bool) -> Iterator[Checked]:
    """What can be written anew from the current version."""
    is_there = (folder.path / SETTINGS).exists()
    if wrong := folder.other_settings(version.number, version.about) if is_there else ["missing"]:
        if repair:
            folder.write_settings(folder.settings(version.about))
        yield Checked(SETTINGS, "mended" if repair else "mendable", "; ".join(wrong))
    page = folder.path / PAGE
    is_of_format_1 = (folder.path / UNSEALED).exists()
    try:
        is_good = is_of_format_1 or not page.exists() or is_whole_page(page)
    except OSError as error:
        yield Checked(PAGE, "lost", f"can't be read: {error.strerror}")
        return
    if not is_good:
        if repair:
            write_page(folder)
        yield Checked(PAGE, "mended" if repair else "mendable", "not as it was written")
