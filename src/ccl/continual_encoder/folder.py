"""An encoder folder: its versions, the images they have seen, and which is current.

    ledger.json      which version is current, which is pinned, and every event (`ledger.py`)
    versions/N/      all of the learner after a drop, its memory, its settings and what it has seen, verified before use
                     (`CheckpointStore`); version 0 is what it started from, where it started from weights
    steps/N/         the metric rows of that drop, the files that were no images, and which classes a probe mistook
    learning/        the drop under way, and its checkpoints
    settings.yaml    a copy of the current version's settings, for people
    seen/N.bin       of versions of format 1: 16 bytes for each image of the drop

A version is current from the moment the ledger names it. What a kill leaves before that is redone or swept away.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ccl.atomic_files import discard, write_file
from ccl.continual_encoder.ledger import (
    BEFORE,
    LEDGER,
    PROMOTED,
    ROLLED_BACK,
    UNSEALED,
    VERSIONS,
    Ledger,
    has_ledger,
    read_ledger,
    write_ledger,
)
from ccl.errors import UserError
from ccl.memory import RehearsalMemory
from ccl.reading import ReadingSettings, validated_reading_settings
from ccl.runs.folder_lock import SETTINGS, Kind, locked, shown_status
from ccl.section import flattened
from ccl.settings_files import read_yaml
from ccl.training.checkpoint import Checkpoint, CheckpointStore, DamagedError, by_part, joined_parts
from ccl.trusted_classes import read_from

if TYPE_CHECKING:
    from ccl.settings import Settings

SEEN, STEPS, LEARNING = "seen", "steps", "learning"
CLASSIFIERS, PAGE, PROBE = "classifiers", "report.html", "probe.json"
DIGEST = 16  # bytes
SEEN_FILE = "seen.bin"  # of a version: the digests of all images that it and its ancestors learned
ASKED = "asked"  # what a version says of all settings that were asked for until then
ENCODER = Kind("an encoder folder", "--into", (LEDGER, BEFORE, UNSEALED, VERSIONS), LEARNING)


class EncoderFolder:
    """The files of one encoder folder; whoever writes holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = CheckpointStore(path / VERSIONS, keep=None)

    @property
    def learning(self) -> Path:
        return self.path / LEARNING

    def exists(self) -> bool:
        return has_ledger(self.path)

    def ledger(self) -> Ledger:
        """Raises UserError in one line where there is no encoder folder, or one that this ccl can't read."""
        if not self.exists():
            raise UserError(
                f"{self.path} is not an encoder folder: it has no {LEDGER}; "
                f"`ccl learn IMAGES --into {self.path}` makes one"
            )
        ledger, has_identity = read_ledger(self.path), (self.path / LEDGER).exists()
        read_from(self.path, ledger.asked, ledger.identity if has_identity else "")
        return ledger

    def make(self, asked: Mapping[str, Any]) -> None:
        """Create the folder, with the settings that were asked for."""
        with locked(self.path, ENCODER):
            self.refuse_existing()
            self.write(Ledger(asked=dict(asked)))

    def refuse_existing(self) -> None:
        if self.exists():
            path = str(self.path)
            raise UserError(f"{path} is an encoder folder already; ContinualEncoder.open({path!r}) opens it")

    def write(self, ledger: Ledger) -> None:
        """Replace the ledger; from here on this one is true. One of format 1 takes on the versions that are there."""
        for number in self.numbers(ledger) if not ledger.hashes else ():
            try:
                ledger.hashes[number] = self.versions.describe(number)[1]
            except UserError:
                ledger.hashes[number] = ""
        read_from(self.path, ledger.asked, ledger.identity)  # who made the folder is not asked for trust later
        write_ledger(self.path, ledger)

    def reading_settings(self, about: Mapping[str, Any]) -> ReadingSettings:
        """Those with which a version reads images, as it says itself."""
        read_from(self.path, about["settings"], about.get("folder", ""))
        return validated_reading_settings(about["settings"], str(self.path))

    def settings(self, about: Mapping[str, Any]) -> "Settings":
        """All of a version's settings, as it says itself."""
        from ccl.loading import validated  # which imports every part of the method

        identity = about.get("folder", "")
        read_from(self.path, about.get(ASKED, {}), identity)
        return validated(about["settings"], written_in=self.path, identity=identity)

    def current_about(self) -> dict[str, Any]:
        """What the current version says of itself."""
        return self.versions.describe(self.ledger().current)[0]

    def other_settings(self, number: int, about: Mapping[str, Any]) -> list[str]:
        """What settings.yaml says otherwise than a version, which is read with its own, in words."""
        path = self.path / SETTINGS
        if not path.exists():
            return []
        try:
            said = flattened(read_yaml(path))
        except UserError as error:
            return [str(error)]
        own = flattened(about["settings"])
        names = [name for name in {**own, **said} if said.get(name) != own.get(name)]
        return [f"{SETTINGS} says {name} {said.get(name)!r}, version {number} {own.get(name)!r}" for name in names]

    def write_settings(self, settings: "Settings") -> None:
        from ccl.loading import dump_settings

        write_file(self.path / SETTINGS, dump_settings(settings))

    def version(self, number: int | None = None) -> Checkpoint:
        """The version asked for; else the pinned one, else the current one."""
        ledger = self.ledger()
        if number is None and self.knows_nothing(ledger):
            raise UserError(f"{self.path} has learned nothing yet; `ccl learn IMAGES --into {self.path}`")
        wanted = next(found for found in (number, ledger.pinned, ledger.current) if found is not None)
        self.refuse_absent(ledger, wanted)
        return self.load(wanted)

    def refuse_absent(self, ledger: Ledger, number: int) -> None:
        if number not in self.numbers(ledger):
            raise UserError(f"{self.path} has no version {number}; there are {self.listed(ledger)}")

    def load(self, number: int) -> Checkpoint:
        """This version, verified; a damaged one is reported with the newest good one and the way to it."""
        ledger = self.ledger()
        try:
            return self.loaded(number, ledger)
        except DamagedError as error:
            good = self.newest_good(ledger)
            way_out = f"version {good} is the newest good one"
            if good is None:
                way_out = "no other version is good: learn the images anew into another folder"
            elif number == ledger.pinned:
                way_out += f": `ccl pin {self.path} {good}` pins it instead"
            elif number == ledger.current:
                way_out += f": `ccl rollback {self.path}` returns to it"
            raise DamagedError(error.path, f"{error.reason}; {way_out}") from error

    def loaded(self, number: int, ledger: Ledger) -> Checkpoint:
        """This version, verified and of this folder."""
        version = self.versions.load(number)
        said = ledger.hashes.get(number) or version.sha256
        if said != version.sha256 or version.about.get("folder", ledger.identity) != ledger.identity:
            raise DamagedError(version.folder, f"not the version {number} that was learned in this folder")
        return version

    def newest_good(self, ledger: Ledger) -> int | None:
        """The newest version that verifies: the current one, one that it was learned on, else any that was current."""
        there = [number for number in self.numbers(ledger) if number not in ledger.candidates]
        candidates = [number for number in (ledger.current, *ledger.ancestors, *reversed(there)) if number in there]
        return next(filter(self.is_good, candidates), None)

    def is_good(self, number: int) -> bool:
        """Whether this version is there and as it was saved."""
        try:
            self.loaded(number, self.ledger())
        except UserError:
            return False
        return True

    def knows_nothing(self, ledger: Ledger) -> bool:
        """Whether there is no version to use: before the first drop, unless version 0 holds what it started from."""
        return ledger.current == 0 and 0 not in self.versions.numbers()

    def memory_of(self, number: int) -> RehearsalMemory:
        """The images that a version remembers."""
        memory = RehearsalMemory()
        memory.load_state_dict(by_part(self.load(number).tensors)["memory"])
        return memory

    def numbers(self, ledger: Ledger) -> list[int]:
        """The versions that are still there, candidates too."""
        there = self.versions.numbers()
        return [number for number in there if (number in ledger.hashes if ledger.hashes else number <= ledger.latest)]

    def next_number(self, ledger: Ledger) -> int:
        """The number of a version to come; one that lies there and is in no ledger keeps its own."""
        return max(ledger.latest, *self.versions.numbers(), 0) + 1

    def listed(self, ledger: Ledger) -> str:
        return ", ".join(map(str, self.numbers(ledger))) or "none"

    def sweep(self, ledger: Ledger, abandoned: int | None) -> None:
        """Delete what killed processes left: partial versions, and the one that was to come of the drop under way."""
        self.versions.clean()
        if abandoned is not None and abandoned > ledger.latest:
            self.versions.remove(abandoned)

    def prune(self, ledger: Ledger, keep: int) -> None:
        """Keep the last so many versions, any that is current or pinned, the newest candidate, and the start."""
        there, candidates = self.numbers(ledger), ledger.candidates
        promoted = [number for number in there if number not in candidates]
        kept = {0, ledger.current, ledger.pinned, *promoted[-keep:], *candidates[-1:]}
        for number in there:
            if number not in kept:
                self.versions.remove(number)

    def save(
        self,
        ledger: Ledger,
        number: int,
        parent: int | None,
        parts: Mapping[str, Mapping[str, Tensor]],
        seen: bytes,
        past: Mapping[str, Any],
        settings: "Settings",
        about: Mapping[str, Any],
    ) -> None:
        """Write a version that has seen images with these digests; `past` is what came before, its steps with it."""
        parents = None if parent is None else ledger.hashes.get(parent)
        about = {
            "version": number,
            "parent": parent,
            "parent_sha256": parents or None,
            "folder": ledger.identity,
            "created": time.time(),
            "steps": past["steps"],
            "next_id": past["next_id"],
            "strategy": settings.strategy,
            "settings": settings.model_dump(mode="json"),
            **about,
        }
        read_from(self.path, about["settings"], ledger.identity)  # as in `write`
        weights = {"weights": past["weights"]} if "weights" in past else {}  # that it started from
        self.versions.save(joined_parts(parts), about | weights, {SEEN_FILE: seen}, number)
        ledger.latest, ledger.hashes[number] = max(ledger.latest, number), self.versions.describe(number)[1]

    def seen(self, version: Checkpoint) -> bytes:
        """The digests of all images that a version and those before it learned."""
        if SEEN_FILE in version.files:
            return version.files[SEEN_FILE]
        found = b""
        for number in version.about["seen"]:
            try:
                found += (self.path / SEEN / f"{number:08d}.bin").read_bytes()
            except OSError as error:
                raise UserError(f"{self.path / SEEN} lacks what version {number} has seen: {error.strerror}") from None
        return found

    def forget_learning(self) -> None:
        """Delete the drop under way, which was finished or is given up."""
        with suppress(OSError):  # the next drop does it
            discard(self.learning)

    def make_current(self, ledger: Ledger, kind: str, version: Checkpoint) -> None:
        """Make another version that is there current; the ledger comes last."""
        self.write_settings(self.settings(version.about))
        ledger.record(kind, version=version.number, before=ledger.current)
        ledger.current = version.number
        self.write(ledger)


def roll_back(folder: EncoderFolder, to: int | None) -> int:
    """Make an older version current, by default the newest good one before the current one; its number."""
    with locked(folder.path, ENCODER):
        ledger = folder.ledger()
        if ledger.current == 0:
            raise UserError(f"{folder.path} has learned nothing yet, so there is nothing to roll back")
        goal, there = to, folder.numbers(ledger)
        if goal is None:  # that the current one was learned on; where that is damaged, any good one will do
            goal = next((number for number in ledger.ancestors if number in there and folder.is_good(number)), None)
            if goal is None and not folder.is_good(ledger.current):
                goal = folder.newest_good(ledger)
        if goal is None:
            raise UserError(
                f"{folder.path} has no older good version to roll back to; there are {folder.listed(ledger)}"
            )
        folder.refuse_absent(ledger, goal)
        if goal == ledger.current:
            raise UserError(f"version {goal} is the current one already")
        folder.make_current(ledger, ROLLED_BACK, folder.load(goal))
    return goal


def promote(folder: EncoderFolder, version: int | None) -> int:
    """Make a candidate current, by default the newest; its number."""
    with locked(folder.path, ENCODER):
        ledger = folder.ledger()
        there = [number for number in ledger.candidates if number in folder.numbers(ledger)]
        if not there:
            raise UserError(f"{folder.path} has no candidate: every drop that was learned was promoted, or is let go")
        number = there[-1] if version is None else version
        if number not in there:
            which = ", ".join(map(str, there))
            raise UserError(f"version {number} is not a candidate ({which}); ccl rollback --to returns to others")
        folder.make_current(ledger, PROMOTED, folder.load(number))
    return number


def pin_version(folder: EncoderFolder, version: int | None) -> None:
    """Use this version whatever is learned meanwhile; None: the current one, always."""
    with locked(folder.path, ENCODER):
        ledger = folder.ledger()
        if version is not None:
            folder.refuse_absent(ledger, version)
        if ledger.pinned == version:
            return
        ledger.pinned = version
        ledger.record("unpinned" if version is None else "pinned", version=version)
        folder.write(ledger)


def folder_status(folder: EncoderFolder) -> dict[str, Any]:
    """Versions, drops, events, and what is wrong with the current version, as JSON values.

    `steps` are those of the current version, or, where that is damaged, of the newest good one.
    """
    ledger = folder.ledger()
    steps: list[dict[str, Any]] = []
    damage = good = None
    if ledger.current:
        try:
            steps = folder.load(ledger.current).about["steps"]
        except DamagedError as error:
            damage, good = str(error), folder.newest_good(ledger)
            steps = [] if good is None else folder.load(good).about["steps"]
    learning = None
    if folder.learning.exists():
        learning = shown_status(folder.learning, folder.path).get("state", "starting")
    return {
        "current": ledger.current,
        "pinned": ledger.pinned,
        "versions": folder.numbers(ledger),
        "candidates": [number for number in ledger.candidates if number in folder.numbers(ledger)],
        "damage": damage,  # None where the current version is good
        "newest_good": good,  # where the current version is damaged
        "learning": learning,  # the state of the drop under way, if there is one
        "events": ledger.events,
        "steps": steps,
    }
