"""An encoder folder: its files, which version is current, and what happened to it.

    state.json       which version is current, which is pinned, and every event: replaced whole, so one truth at a time
    settings.yaml    what it learns with; absent until the first images are known
    versions/N/      the learner with its memory after a drop, verified before use (`CheckpointStore`); version 0 is the
                     encoder that it started from, where it started from weights
    seen/N.bin       16 bytes for each image of the drop that made version N: no image is learned twice
    steps/N/         the metric rows of that drop, the files that were no images, and which classes a probe mistook
    learning/        the drop under way, and its checkpoints

A version is current from the moment `state.json` names it. What a kill leaves before that is redone or swept away.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ccl.atomic_files import write_file
from ccl.errors import UserError
from ccl.memory import RehearsalMemory
from ccl.reading import ReadingSettings, read_reading_settings
from ccl.runs.folder_lock import SETTINGS, Kind, locked, read_status
from ccl.training.checkpoint import Checkpoint, CheckpointStore, DamagedError, by_part, joined_parts

if TYPE_CHECKING:
    from ccl.settings import Settings

FORMAT = 1
LEDGER, VERSIONS, SEEN, STEPS, LEARNING = "state.json", "versions", "seen", "steps", "learning"
CLASSIFIERS, PAGE, PROBE = "classifiers", "report.html", "probe.json"
DIGEST = 16  # bytes
ASKED = "asked"  # what a version says of all settings that were asked for until then
STARTED = "started"  # the event of an encoder that starts from weights
ENCODER = Kind("an encoder folder", "--into", LEDGER, LEARNING)


@dataclass
class Ledger:
    """The content of `state.json`."""

    created: float = field(default_factory=time.time)
    current: int = 0  # the current version; 0 before the first drop, the weights it started from if there are any
    latest: int = 0  # the highest number ever given
    pinned: int | None = None  # the version that is used, whatever is learned meanwhile
    asked: dict[str, Any] = field(default_factory=dict)  # settings asked for before the first images were known
    events: list[dict[str, Any]] = field(default_factory=list)  # the oldest first; `kind` and `when` in each

    def record(self, kind: str, **about: Any) -> None:
        """Append an event."""
        self.events.append({"kind": kind, "when": time.time(), **about})

    @property
    def ancestors(self) -> list[int]:
        """The versions that the current one was learned on, the newest first, as the events have it.

        The last is version 0, what it started from, of which an encoder that began from nothing has no file.
        """
        parents, current = dict[int, int](), 0
        for event in self.events:
            if event["kind"] == "learned":
                parents[event["version"]] = current
            if event["kind"] in ("learned", "rolled back"):
                current = event["version"]
        found, number = [], parents.get(self.current, 0)
        while number:
            found.append(number)
            number = parents.get(number, 0)
        return [*found, 0] if self.current else found


class EncoderFolder:
    """The files of one encoder folder; whoever writes holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = CheckpointStore(path / VERSIONS, keep=None)

    @property
    def learning(self) -> Path:
        return self.path / LEARNING

    def exists(self) -> bool:
        return (self.path / LEDGER).is_file()

    def ledger(self) -> Ledger:
        """Raises UserError in one line where there is no encoder folder, or one that this ccl can't read."""
        if not self.exists():
            raise UserError(
                f"{self.path} is not an encoder folder: it has no {LEDGER}; "
                f"`ccl learn IMAGES --into {self.path}` makes one"
            )
        try:
            content = json.loads((self.path / LEDGER).read_text(encoding="utf-8"))
            if content.pop("format") > FORMAT:
                raise UserError(f"{self.path} was made by a newer ccl; update ccl to use it")
            return Ledger(**content)
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path / LEDGER} can't be read: {type(error).__name__}: {error}") from None

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
        """Replace `state.json`; from here on this ledger is current."""
        write_file(self.path / LEDGER, json.dumps({"format": FORMAT, **asdict(ledger)}, indent=1))

    def settings(self) -> "Settings | None":
        """None before the first drop."""
        from ccl.loading import read_settings  # which imports every part of the method

        path = self.path / SETTINGS
        return read_settings(path) if path.is_file() else None

    def reading_settings(self) -> ReadingSettings:
        """Those with which its versions read images."""
        return read_reading_settings(self.path / SETTINGS)

    def write_settings(self, settings: "Settings") -> None:
        from ccl.loading import dump_settings

        write_file(self.path / SETTINGS, dump_settings(settings))

    def version(self, number: int | None = None) -> Checkpoint:
        """The version asked for; else the pinned one, else the current one."""
        ledger = self.ledger()
        if self.knows_nothing(ledger):
            raise UserError(f"{self.path} has learned nothing yet; `ccl learn IMAGES --into {self.path}`")
        wanted = next(found for found in (number, ledger.pinned, ledger.current) if found is not None)
        self.refuse_absent(ledger, wanted)
        return self.load(wanted)

    def refuse_absent(self, ledger: Ledger, number: int) -> None:
        if number not in self.numbers(ledger):
            raise UserError(f"{self.path} has no version {number}; there are {self.listed(ledger)}")

    def load(self, number: int) -> Checkpoint:
        """This version, verified; a damaged one is reported with the newest good one and the way to it."""
        try:
            return self.versions.load(number)
        except DamagedError as error:
            ledger = self.ledger()
            good = self.newest_good(ledger)
            way_out = f"version {good} is the newest good one"
            if good is None:
                way_out = "no other version is good: learn the images anew into another folder"
            elif number == ledger.pinned:
                way_out += f": `ccl pin {self.path} {good}` pins it instead"
            elif number == ledger.current:
                way_out += f": `ccl rollback {self.path}` returns to it"
            raise DamagedError(error.path, f"{error.reason}; {way_out}") from error

    def newest_good(self, ledger: Ledger) -> int | None:
        """The newest version that verifies: the current one, one that it was learned on, else any."""
        there = self.numbers(ledger)
        candidates = [number for number in (ledger.current, *ledger.ancestors, *reversed(there)) if number in there]
        return next(filter(self.is_good, candidates), None)

    def is_good(self, number: int) -> bool:
        """Whether this version is there and as it was saved."""
        try:
            self.versions.load(number)
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
        """The versions that are still there."""
        return [number for number in self.versions.numbers() if number <= ledger.latest]

    def listed(self, ledger: Ledger) -> str:
        return ", ".join(map(str, self.numbers(ledger))) or "none"

    def sweep(self, ledger: Ledger) -> None:
        """Delete what killed processes left: partial versions, and whole ones that never became current."""
        self.versions.clean()
        for number in self.versions.numbers():
            if number > ledger.latest:
                self.versions.remove(number)

    def prune(self, ledger: Ledger, keep: int) -> None:
        """Keep the last so many versions, any that is current or pinned, and the one that it started from."""
        numbers = self.numbers(ledger)
        for number in numbers[:-keep]:
            if number not in (0, ledger.current, ledger.pinned):
                self.versions.remove(number)

    def save(
        self,
        number: int,
        parent: int | None,
        parts: Mapping[str, Mapping[str, Tensor]],
        digests: Sequence[bytes],
        past: Mapping[str, Any],
        settings: "Settings",
        asked: Mapping[str, Any],
    ) -> None:
        """Write a version that has learned images with these digests; `past` is what came before, its steps with it."""
        about = {
            "version": number,
            "parent": parent,
            "created": time.time(),
            "steps": past["steps"],
            "seen": [*past["seen"], number],
            "next_id": past["next_id"] + len(digests),
            "strategy": settings.strategy,
            "settings": settings.model_dump(mode="json"),
            ASKED: dict(asked),
        }
        weights = {"weights": past["weights"]} if "weights" in past else {}  # that it started from
        self.remember_seen(number, digests)
        self.versions.save(joined_parts(parts), about | weights, number=number)

    def remember_seen(self, number: int, digests: Sequence[bytes]) -> None:
        write_file(self.path / SEEN / f"{number:08d}.bin", b"".join(digests))

    def seen(self, numbers: Sequence[int]) -> set[bytes]:
        """The digests of all images that these versions' drops brought."""
        found: set[bytes] = set()
        for number in numbers:
            try:
                content = (self.path / SEEN / f"{number:08d}.bin").read_bytes()
            except OSError as error:
                raise UserError(f"{self.path / SEEN} lacks what version {number} has seen: {error.strerror}") from None
            found.update(content[start : start + DIGEST] for start in range(0, len(content), DIGEST))
        return found

    def forget_learning(self) -> None:
        """Delete the drop under way, which was finished or is given up."""
        shutil.rmtree(self.learning, ignore_errors=True)


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
        folder.load(goal)  # raises where it is not good
        ledger.record("rolled back", version=goal, before=ledger.current)
        ledger.current = goal
        folder.write(ledger)
    return goal


def pin_version(folder: EncoderFolder, version: int | None) -> None:
    """Use this version whatever is learned meanwhile; None: the current one, always."""
    with locked(folder.path, ENCODER):
        ledger = folder.ledger()
        if version is not None:
            folder.refuse_absent(ledger, version)
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
    learning = read_status(folder.learning).get("state", "starting") if folder.learning.exists() else None
    return {
        "current": ledger.current,
        "pinned": ledger.pinned,
        "versions": folder.numbers(ledger),
        "damage": damage,  # None where the current version is good
        "newest_good": good,  # where the current version is damaged
        "learning": learning,  # the state of the drop under way, if there is one
        "events": ledger.events,
        "steps": steps,
    }
