"""One drop into a state: gathered, learned as the next step of its stream, judged, promoted or refused.

The same call again goes on where it was broken off, to the same bits; the images are not needed afterwards.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch

from ccl.data import BadImage, Dataset, ImageSource, write_bad_images
from ccl.data.dataset import with_ids
from ccl.data.gathering import Gathered, Unseen
from ccl.data.resizing import squared
from ccl.errors import StoppedError, UserError
from ccl.evaluation import Drift
from ccl.folder import CHECKPOINTS, METRICS, put
from ccl.loading import merged
from ccl.report import RunLog
from ccl.running.build import build_device, build_learner, build_plan, build_selection, build_viewer
from ccl.running.occupancy import locked
from ccl.running.protocol import code_hash
from ccl.running.run import Both, Display
from ccl.running.saving import RunState, by_part, go_on, stamp
from ccl.settings import Settings, differences
from ccl.state.choosing import FEWEST_IMAGES, changed, choose
from ccl.state.folder import STATE, STEPS, Ledger, StateFolder
from ccl.state.health import Accuracy, load_labelled, read, remembered
from ccl.state.opening import thawed
from ccl.training import Learner, Progress, learn_stream
from ccl.training.checkpoint import Checkpoint, CheckpointStore
from ccl.training.stopping import StopRequest
from ccl.views import Viewer

DROP = "drop.json"
BAD_IMAGES = "bad_images.csv"
KEEP_VERSIONS = 5
_SAMPLE = 64  # images whose size stands for all

Item = TypeVar("Item")
# From the folder in which archives may be unpacked, and who shows progress, to the images.
Gather = Callable[[Path, Callable[[int, int], None]], Gathered]


@dataclass(frozen=True)
class Options:
    """How a drop is taken in."""

    name: str = "images"  # what people call it
    asked: Mapping[str, Any] | None = None  # settings
    probe: Path | None = None  # a labelled folder to measure accuracy on
    max_drop: float | None = None  # points that may be lost; None: any
    restart: bool = False  # forget an unfinished drop
    keep_versions: int = KEEP_VERSIONS


@dataclass(frozen=True)
class Outcome:
    """What became of a drop."""

    kind: Literal["learned", "known", "refused"]
    version: int  # the one that counts now; 0 for none
    told: str  # in a line
    step: Mapping[str, Any]  # what the state remembers of the drop, as JSON values; empty for "known"


class OnlyStep(Sequence[Item]):
    """A stream of which only this step is there: the past is gone, the future not yet come."""

    def __init__(self, step: int, item: Item) -> None:
        self._step, self._item = step, item

    def __len__(self) -> int:
        return self._step + 1

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if index != self._step:
            raise LookupError(f"only step {self._step} is there, not {index}")
        return self._item


def learn(state: StateFolder, gather: Gather, display: Display, options: Options) -> Outcome:
    """Take a drop in, or go on with it."""
    with ExitStack() as held, StopRequest() as stop:
        held.enter_context(locked(state.path, STATE))
        ledger = state.ledger() if state.exists() else Ledger()
        state.sweep(ledger)
        _forget_stale(state, ledger)
        try:
            return _Drop(state, ledger, display, options, stop).learn(gather)
        finally:
            display.run_ends()
            if not (state.learning / DROP).exists():  # nothing was begun: leave no trace
                state.forget_learning()


class _Drop:
    """The work on one drop, in the order of its methods."""

    def __init__(
        self, state: StateFolder, ledger: Ledger, display: Display, options: Options, stop: StopRequest
    ) -> None:
        self.state, self.ledger, self.display, self.options, self.stop = state, ledger, display, options, stop
        self.parent = state.versions.load(ledger.current) if ledger.current else None
        self.past: dict[str, Any] = dict(self.parent.about) if self.parent else {"steps": [], "seen": [], "next_id": 0}
        self.step = len(self.past["steps"])
        self.unpacked = state.learning / ".unpacked"  # hidden, should the state lie in a folder that is learned

    def learn(self, gather: Gather) -> Outcome:
        gathered = gather(self.unpacked, self.display.loading)
        self.display.run_ends()  # the bar of the gathering
        for line in gathered.notes:
            self.display.note(line)
        new = gathered.without(self.state.seen(self.past["seen"]).__contains__)
        self._tell_repeats(new)
        if not len(new.source):
            known = f"all {new.num_known:,} images were learned before; nothing to do"
            return Outcome("known", self.ledger.current, known, {})
        if len(new.source) < FEWEST_IMAGES:
            raise UserError(
                f"{len(new.source)} new images are too few to learn from (at least {FEWEST_IMAGES}); "
                "keep them and give them together with the next"
            )
        settings = self._settings(new)
        labelled = load_labelled(self.options.probe, settings.data.resize) if self.options.probe else None
        self._claim(new, settings)
        if gathered.skipped:
            self._tell_bad(gathered.skipped)
        images = self._shown(new, settings)
        device = build_device(settings)
        learner, viewer = build_learner(settings, device), build_viewer(settings, device)
        try:
            self._train(settings, learner, viewer, images, new)
            step = self._judged(settings, learner, viewer, images, new, labelled)
        finally:
            viewer.close()
        if reason := self._lost_too_much(step):
            return self._refuse(step, reason)
        return self._promote(settings, learner, new, step)

    def _tell_repeats(self, new: Unseen) -> None:
        told = [f"{new.num_known:,} were learned before"] if new.num_known else []
        told += [f"{new.num_repeated:,} are there twice"] if new.num_repeated else []
        if told and len(new.source):
            self.display.note(f"{len(new.source):,} new images ({' and '.join(told)}, by content: left out)")

    def _tell_bad(self, bad: Sequence[BadImage]) -> None:
        write_bad_images(self.state.learning / BAD_IMAGES, bad)
        kept = self.state.path / STEPS / f"{self.ledger.latest + 1:08d}" / BAD_IMAGES
        self.display.note(f"{len(bad)} files are no usable images and left out, e.g. {bad[0]}; all in {kept}")

    def _settings(self, new: Unseen) -> Settings:
        """Those of the state, or chosen for its first images."""
        before, asked = self.state.settings(), self.options.asked or {}
        is_begun = (self.state.learning / DROP).exists() and not self.options.restart
        if before is not None and (self.parent is not None or is_begun):
            return changed(before, asked)
        asked = merged(self.ledger.asked, asked)
        kind = str(asked.get("device", "auto"))
        if kind == "auto":
            kind = "cuda" if torch.cuda.is_available() else "cpu"
        choice = choose(len(new.source), _median_side(new.source), kind.partition(":")[0], asked)
        for line in choice.reasons:
            self.display.note(line)
        if asked:
            self.display.note(f"as asked: {', '.join(_flat(asked))}")
        return choice.settings

    def _claim(self, new: Unseen, settings: Settings) -> None:
        """From here on the state is at this drop; refuses where it is at another."""
        path = self.state.learning / DROP
        mine = {
            "fingerprint": hashlib.sha256(b"".join(new.digests)).hexdigest()[:16],
            "parent": self.ledger.current,
            "num_images": len(new.source),
        }
        if path.exists() and self.options.restart:
            self.display.note("the unfinished drop is forgotten")
            self._forget_checkpoints()
        elif path.exists():
            begun = _read_json(path)
            if all(begun.get(key) == value for key, value in mine.items()):
                _refuse_changes(self.state, settings)
                return
            if not begun.get("refused"):
                raise UserError(
                    f"{self.state.path} is in the middle of learning {begun.get('name')!r} ({begun.get('num_images')} "
                    "images): give the same images again to go on, or --restart to forget them"
                )
            self.display.note(f"the drop {begun.get('name')!r}, which was refused, is forgotten")
            self._forget_checkpoints()
        self.state.write(self.ledger)  # first: it marks the folder as a state
        self.state.write_settings(settings)
        self.state.learning.mkdir(parents=True, exist_ok=True)
        put(path, json.dumps({"name": self.options.name, "began": time.time(), **mine}, indent=1))

    def _forget_checkpoints(self) -> None:
        """All of another drop but what was just unpacked of this one."""
        for path in self.state.learning.iterdir():
            if path != self.unpacked:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _shown(self, new: Unseen, settings: Settings) -> ImageSource:
        """The images with ids of their own in the whole stream, in the size in which they are learned."""
        first = int(self.past["next_id"])
        source = with_ids(new.source, first + torch.arange(len(new.source)))
        if settings.data.resize is None:
            return source
        small = squared(source, settings.data.resize, self.display.loading)
        self.display.run_ends()
        return small

    def _train(self, settings: Settings, learner: Learner, viewer: Viewer, images: ImageSource, new: Unseen) -> None:
        if self.parent is not None:
            _restore(learner, self.parent)
        about = {"state": str(self.state.path), "step": self.step + 1, "code": code_hash(), "torch": torch.__version__}
        log = RunLog(self.state.learning, settings, about)
        store = CheckpointStore(self.state.learning / CHECKPOINTS, settings.checkpoint.keep)
        made = stamp(settings, hashlib.sha256(b"".join(new.digests)).hexdigest()[:16])
        saver = RunState(
            learner, log, store, others={}, minutes=settings.checkpoint.minutes, stop=self.stop, stamp=made
        )
        self.display.run_begins(self.options.name, self.step + 1, settings.epochs, self.step)
        try:
            progress = go_on(saver, self.display)
            if progress is None:
                log.begin()
                momentum = by_part(self.parent.tensors)["optimizer"] if self.parent else {}
                progress = Progress.restored({"step": self.step, "epoch": 0, "batch": 0, "phase": "train"}, momentum)
            learn_stream(
                learner,
                OnlyStep(self.step, images),
                viewer,
                build_plan(settings),
                selection=build_selection(settings),
                num_clusters=OnlyStep(self.step, _clusters(settings, len(images))),
                observer=Both(log, self.display),
                progress=progress,
                save=saver.save,
            )
        except StoppedError as stopped:
            log.status("stopped", reason=str(stopped))
            raise
        except Exception as error:
            log.status("failed", reason=str(error))
            raise
        self.momentum = progress.state_dict() if settings.optimizer.carry_momentum else {}
        self.display.run_ends()

    def _judged(
        self,
        settings: Settings,
        learner: Learner,
        viewer: Viewer,
        images: ImageSource,
        new: Unseen,
        labelled: Dataset | None,
    ) -> dict[str, Any]:
        """What the state will remember of this step: how it was before, and how it is now."""
        before = thawed(settings, self.parent) if self.parent is not None else None
        memory = learner.memory
        if before is not None and self.parent is not None:  # what was remembered then, also what was let go since
            memory = self.state.memory_of(self.parent.number)
        drift = None
        if len(memory) > 1:
            source, groups = remembered(memory, images)
            was = None if before is None else read(before.encoder, before.viewer, source)
            drift = Drift.of(was, read(learner.encoder, viewer, source), groups)
        accuracy = accuracy_before = None
        if labelled is not None:
            accuracy = Accuracy.of(learner.encoder, viewer, labelled)
            known = self.past["steps"][-1].get("accuracy") if self.past["steps"] else None
            if known is not None and known["fingerprint"] == labelled.fingerprint:
                accuracy_before = known["linear"]
            elif before is not None:
                accuracy_before = Accuracy.of(before.encoder, before.viewer, labelled).linear
        if before is not None:
            before.viewer.close()
        rows = [json.loads(line) for line in (self.state.learning / METRICS).read_text(encoding="utf-8").splitlines()]
        return {
            "step": self.step + 1,
            "name": self.options.name,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "num_images": len(images),
            "num_known": new.num_known,
            "num_repeated": new.num_repeated,
            "num_remembered": len(learner.memory),
            "seconds": round(sum(float(row.get("seconds", 0.0)) for row in rows), 1),
            "health": None if drift is None else drift.as_dict(),
            "verdict": "nothing is remembered, so nothing can be compared" if drift is None else drift.verdict,
            "accuracy": None if accuracy is None else {**accuracy.as_dict(), "linear_before": accuracy_before},
        }

    def _lost_too_much(self, step: Mapping[str, Any]) -> str:
        """Why this version may not count, in words; empty where it may."""
        allowed, accuracy, health = self.options.max_drop, step["accuracy"], step["health"]
        if allowed is None or self.parent is None:
            return ""
        if accuracy is not None:
            what, before, after = "accuracy on the labelled images", accuracy["linear_before"], accuracy["linear"]
        elif health is not None:
            what = "agreement of remembered images with their groups"
            before, after = health["group_agreement"]
        else:
            return ""
        if before is None or after is None or before - after <= allowed:
            return ""
        lost = before - after
        return f"{what} fell from {before:.1f} to {after:.1f} %, by {lost:.1f} points, and {allowed:g} are allowed"

    def _refuse(self, step: Mapping[str, Any], reason: str) -> Outcome:
        """The old version goes on counting; what was learned stays beside until another drop comes."""
        path = self.state.learning / DROP
        begun = _read_json(path)
        if not begun.get("refused"):
            self.ledger.tell("refused", reason=reason, **step)
            self.state.write(self.ledger)
        put(path, json.dumps(begun | {"refused": True}, indent=1))
        return Outcome("refused", self.ledger.current, f"not promoted: {reason}", step)

    def _promote(self, settings: Settings, learner: Learner, new: Unseen, step: dict[str, Any]) -> Outcome:
        """Everything is written aside first; the ledger's line makes it count."""
        number = self.ledger.latest + 1
        parts = {"learner": learner.state_dict(), "memory": learner.memory.state_dict(), "optimizer": self.momentum}
        tensors = {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}
        steps = [*self.past["steps"], {**step, "version": number}]
        about = {
            "version": number,
            "parent": self.ledger.current,
            "created": time.time(),
            "steps": steps,
            "seen": [*self.past["seen"], number],
            "next_id": int(self.past["next_id"]) + len(new.source),
            "strategy": settings.strategy,
            "settings": settings.model_dump(mode="json"),
        }
        self.state.remember_seen(number, new.digests)
        self.state.versions.save(tensors, about, number=number)
        kept = self.state.path / STEPS / f"{number:08d}"
        kept.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, BAD_IMAGES):
            if (self.state.learning / name).exists():
                put(kept / name, (self.state.learning / name).read_bytes())
        self.state.write_settings(settings)
        self.ledger.current = self.ledger.latest = number
        self.ledger.tell("learned", version=number, **step)
        self.state.write(self.ledger)
        self.state.forget_learning()
        self.state.prune(self.ledger, self.options.keep_versions)
        return Outcome("learned", number, f"version {number}: {step['verdict']}", steps[-1])


def _forget_stale(state: StateFolder, ledger: Ledger) -> None:
    """A drop that was begun on another version than the current one came to count just before a kill, or never will."""
    path = state.learning / DROP
    if path.exists() and _read_json(path).get("parent") != ledger.current:
        state.forget_learning()


def _restore(learner: Learner, version: Checkpoint) -> None:
    parts = by_part(version.tensors)
    learner.load_state_dict(parts["learner"])
    learner.memory.load_state_dict(parts["memory"])


def _clusters(settings: Settings, num_images: int) -> int | None:
    """As many as asked for, at most one for each image; None to estimate."""
    asked = settings.memory.clusters
    return min(asked, num_images) if isinstance(asked, int) else None


def _refuse_changes(state: StateFolder, now: Settings) -> None:
    """A drop that has begun is finished as it began."""
    before = state.settings()
    wrong = differences(before, now) if before is not None else []
    if wrong:
        raise UserError(f"a drop is half learned with other settings ({'; '.join(wrong)}); --restart begins it anew")


def _median_side(source: ImageSource) -> int:
    """The shorter side of a typical image, in pixels."""
    if source.image_size is not None:
        return min(source.image_size)
    some = torch.linspace(0, len(source) - 1, min(_SAMPLE, len(source))).round().long()
    sides = sorted(min(source.picture(position).size) for position in some.tolist())
    return sides[len(sides) // 2]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """ "a.b=c" for each value."""
    found = []
    for key, value in values.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}={value}"]
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read ({error}); delete {path.parent} to forget the unfinished drop") from None
    return content if isinstance(content, dict) else {}
