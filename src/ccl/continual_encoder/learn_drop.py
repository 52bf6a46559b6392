"""One drop into an encoder folder: gathered, learned as the next step of its stream, judged, promoted or refused.

The same call again resumes where it was interrupted, to the same bits; the images are not needed afterwards.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ccl.atomic_files import discard, write_file
from ccl.continual_encoder.choose_settings import FEWEST_IMAGES, DropSize, changed, choose, is_on_gpu, refuse_mistakes
from ccl.continual_encoder.folder import ASKED, DIGEST, ENCODER, PROBE, STEPS, EncoderFolder
from ccl.continual_encoder.folder_page import gains_line, kept_sentence, probe_and_health, step_warnings
from ccl.continual_encoder.frozen_encoder import load_learner, student_of
from ccl.continual_encoder.images import listing_bad_images
from ccl.continual_encoder.judge import CollapsedError, CollapseWatch, judged, why_refused
from ccl.continual_encoder.ledger import LEARNED, PROMOTED, REFUSED, Ledger
from ccl.continual_encoder.probe_classifiers import CONFUSION, check_labelled
from ccl.data import (
    Found,
    Gathered,
    Images,
    ImageSource,
    chunked,
    collected,
    find_held,
    find_images,
    load_dataset,
    median_side,
    write_bad_images,
)
from ccl.errors import UserError, counted
from ccl.loading import read_settings
from ccl.reading import build_device, build_viewer
from ccl.report.tables import to_rich
from ccl.runs.build import build_learner, build_plan, build_selection, resolved
from ccl.runs.display import Display
from ccl.runs.folder_lock import SETTINGS, locked
from ccl.runs.forecast import clock, learner_bytes, refuse_too_large, seconds_here, size, work
from ccl.runs.run_folder import CHECKPOINTS, METRICS, read_rows
from ccl.runs.session import Session, code_hash
from ccl.sealed_json import seal, unseal
from ccl.section import flattened, merged
from ccl.settings import Settings, differences
from ccl.settings_files import without_gone
from ccl.training import Learner, Loop, Observer, Observers, Progress
from ccl.training.checkpoint import Checkpoint, DamagedError, by_part
from ccl.training.stop_signals import StopRequest
from ccl.views import Viewer

BAD_IMAGES, DROP = "bad_images.csv", "drop.json"
_WHICH = ("fingerprint", "parent", "num_images")  # by which a drop is known again
UNPACKED = ".unpacked"  # hidden, should the encoder folder lie in a folder that is learned
Find = Callable[[Path, Callable[[int, int], None]], Found]  # given a folder for archives, and who shows progress


@dataclass(frozen=True)
class Options:
    """Options of learning a drop."""

    name: str  # what people call it
    asked: Mapping[str, Any]  # settings
    probe: Path | None  # a labelled folder to measure accuracy on
    max_drop: float | None  # points that may be lost; None: any
    restart: bool  # forget an unfinished drop
    keep_versions: int
    max_bad: float  # percent of files, also of the labelled folder's, that may be unusable
    dry_run: bool  # only say what it would take


@dataclass(frozen=True)
class Outcome:
    """The outcome of a drop."""

    kind: Literal["learned", "known", "refused", "planned"]
    version: int  # the current one; 0 for none
    message: str  # in a line, or some for "planned"
    step: Mapping[str, Any]  # what the folder remembers of the drop, as JSON values; empty for "known" and "planned"

    @property
    def gains(self) -> str:
        """In a line, what was gained on the new images and lost of the old; empty where nothing was learned."""
        return gains_line(self.step)

    def tell(self, display: Display) -> None:
        """Print the drop's tables, health, gains and losses, and warnings."""
        if self.kind == "planned":
            display.console.print(self.message, markup=False, highlight=False, soft_wrap=True)
            return
        for table in probe_and_health(self.step) if self.step else ():
            display.console.print(to_rich(table, display.console.width))
        display.note(self.message)
        for line in [self.gains, *(f"warning: {line}" for line in step_warnings(self.step))] if self.step else ():
            display.note(line)
        if self.kind == "refused" and self.version:
            display.note(f"version {self.version} stays the current one")


def drops(folder: EncoderFolder, images: Images, chunk: int) -> Iterator[Find]:
    """The drops of an input: one of what is given as a whole; of an iterable every `chunk` new images are one."""
    if isinstance(images, str | Path | np.ndarray | Tensor | Sequence):
        yield partial(find_images, images)
    else:
        for part in chunked(_unseen(folder, images), chunk, minimum=FEWEST_IMAGES):
            yield partial(find_images, part)


def _unseen(folder: EncoderFolder, images: Iterable[Any]) -> Iterator[Any]:
    """Images not met before: so that a stream that is begun anew is cut where it was cut the first time."""
    known = set[bytes]()
    if folder.exists() and not folder.knows_nothing(ledger := folder.ledger()):
        known = _digests(folder.seen(folder.load(ledger.current)))
    for image in images:
        (digest,) = collected(find_held([image]), is_known=lambda digest: False).digests
        if digest not in known:
            known.add(digest)
            yield image


def learn(folder: EncoderFolder, find: Find, display: Observer, options: Options) -> Outcome:
    """Take a drop in, or resume it."""
    with listing_bad_images(folder.path), StopRequest() as stop, locked(folder.path, ENCODER):
        ledger = folder.ledger() if folder.exists() else Ledger()
        begun = {}
        with suppress(UserError) if options.restart else nullcontext():
            begun = read_begun(folder, ledger.identity)
        folder.sweep(ledger, begun.get("version"))
        # A drop begun on another version than the current one became current just before a kill, or never will.
        if begun and (begun["parent"] != ledger.current or begun.get("version", ledger.latest + 1) in ledger.hashes):
            folder.forget_learning()
            begun = {}
        try:
            return _Drop(folder, ledger, {} if options.restart else begun, display, options, stop).learn(find)
        finally:
            display.run_ends()
            if not is_begun(folder):  # nothing was begun: leave no trace
                folder.forget_learning()


class _Drop:
    """One drop being learned; the methods are called in their order."""

    def __init__(
        self,
        folder: EncoderFolder,
        ledger: Ledger,
        begun: Mapping[str, Any],  # the drop that may be resumed; empty for none
        display: Observer,
        options: Options,
        stop: StopRequest,
    ) -> None:
        self.folder, self.ledger, self.begun = folder, ledger, begun
        self.display, self.options, self.stop = display, options, stop
        self.parent = None if folder.knows_nothing(ledger) else folder.load(ledger.current)
        self.past: dict[str, Any] = dict(self.parent.about) if self.parent else {"steps": [], "next_id": 0}
        self.seen = folder.seen(self.parent) if self.parent else b""
        self.step = len(self.past["steps"])

    def learn(self, find: Find) -> Outcome:
        is_known = _digests(self.seen).__contains__
        before = self._settings_before()
        scratch, loading, max_bad = self.folder.learning / UNPACKED, self.display.loading, self.options.max_bad
        found, typical = find(scratch, loading), 0
        if before is None:  # the size to learn in is chosen from the headers
            typical = median_side(found, loading)
            side = self._chosen(len(found.source), typical, None)[0].data.resize
        else:
            side = before.data.resize
        gathered = collected(found, side, is_known, progress=loading, max_bad=max_bad, spool=scratch)
        self.display.run_ends()  # the bar of the loading
        for line in found.notes:
            self.display.note(line)
        new = gathered.distinct(first_id=int(self.past["next_id"]))
        if not len(new.source):
            known = "the only image was" if new.num_known == 1 else f"all {new.num_known:,} images were"
            return Outcome("known", self.ledger.current, f"{known} learned before; nothing to do", {})
        left_out = [f"{new.num_known:,} were learned before"] if new.num_known else []
        left_out += [f"{new.num_repeated:,} are there twice"] if new.num_repeated else []
        if left_out:
            self.display.note(f"{len(new.source):,} new images ({' and '.join(left_out)}, by content: left out)")
        if len(new.source) < FEWEST_IMAGES:
            raise UserError(
                f"too few new images to learn from: {len(new.source)} (at least {FEWEST_IMAGES}); "
                "keep them and give them together with the next"
            )
        pending, settings = self._pending(new, before, typical)
        device = build_device(settings)
        refuse_too_large(settings, device)
        if self.options.dry_run:
            num_remembered = len(self.folder.memory_of(self.ledger.current)) if self.parent else 0
            lines = _plan(settings, new, num_remembered, self.folder.path, self.options.keep_versions)
            return Outcome("planned", self.ledger.current, "\n".join(lines), {})
        if candidate := self._candidate(pending, settings):
            return self._judge_again(candidate)
        probe, images = self.options.probe, new.source
        labelled = None
        if probe is not None:
            labelled = load_dataset("folder", probe, resize=settings.data.resize, max_bad=max_bad)
            check_labelled(probe, labelled)
        self._begin(pending, settings)
        if bad := gathered.skipped:
            write_bad_images(self.folder.learning / BAD_IMAGES, bad)
            kept = self._kept(pending["version"]) / BAD_IMAGES
            self.display.note(f"{len(bad)} files are not usable images and left out, e.g. {bad[0]}; all in {kept}")
        start = student_of(self.parent) if self.parent is not None and self.step == 0 else None
        learner, viewer = build_learner(settings, device, start), build_viewer(settings, device)
        try:
            early = self._train(settings, learner, viewer, images, pending["fingerprint"])
            step = self._about(new, learner) | judged(
                self.folder, settings, self.parent, learner, viewer, images, labelled, self.past["steps"]
            )
        finally:
            viewer.close()
        step["faults"] += early
        if step["accuracy"] is not None and (confusion := step["accuracy"].pop(CONFUSION, None)):
            write_file(self.folder.learning / PROBE, json.dumps(confusion))
        return self._keep(settings, learner, new, step, pending)

    def _settings_before(self) -> Settings | None:
        """The folder's settings; None where they are yet to be chosen for its first images. Refuses mistakes."""
        before = None
        if self.begun:
            before = self._begun_settings()
        elif self.parent is not None:
            before = self.folder.settings(self.parent.about)
        if before is not None:
            changed(before, self.options.asked)
        else:
            refuse_mistakes(merged(self.ledger.asked, self.options.asked))
        if self.options.probe is not None:
            check_labelled(self.options.probe)
        return before

    def _begun_settings(self) -> Settings:
        """The settings of the drop under way; those of format 1 stand in the folder."""
        if "settings" in self.begun:
            return self.folder.settings({**self.begun, "folder": self.ledger.identity})
        return read_settings(self.folder.path / SETTINGS)

    def _pending(self, new: Gathered, before: Settings | None, typical: int) -> tuple[dict[str, Any], Settings]:
        """The drop, and its settings: as it began, or chosen for it and kept with it before anything is learned."""
        pending: dict[str, Any] = {
            "name": self.options.name,
            "fingerprint": hashlib.sha256(b"".join(new.digests)).hexdigest()[:16],  # of equal images in equal order
            "parent": self.ledger.current,  # the version that it is learned on
            "num_images": len(new.source),
        }
        if before is not None and self._has_begun(pending):
            return {"version": self.ledger.latest + 1, **self.begun}, changed(before, self.options.asked)
        before = self.folder.settings(self.parent.about) if self.parent is not None else None
        settings, reasons, asked = self._chosen(len(new.source), typical, before)
        for line in reasons:
            self.display.note(line)
        if asked and self.parent is None:
            self.display.note(f"as asked: {', '.join(f'{name}={value}' for name, value in flattened(asked).items())}")
        settings = settings if before is not None else resolved(settings)
        pending |= {"asked": asked, "version": self.folder.next_number(self.ledger)}
        return pending | {"settings": settings.model_dump(mode="json")}, settings

    def _has_begun(self, pending: Mapping[str, Any]) -> bool:
        """Whether this very drop is the one under way."""
        return all(self.begun.get(name) == pending[name] for name in _WHICH)

    def _candidate(self, pending: Mapping[str, Any], settings: Settings) -> Checkpoint | None:
        """The version that these images have made already with these settings, and that was refused."""
        if self.options.restart:
            return None
        for number in set(self.ledger.candidates) & set(self.folder.numbers(self.ledger)):
            with suppress(DamagedError):  # it is learned again
                version = self.folder.loaded(number, self.ledger)
                is_same = version.about["drop"] == {name: pending[name] for name in _WHICH}
                if is_same and version.about["settings"] == settings.model_dump(mode="json"):
                    return version
        return None

    def _judge_again(self, candidate: Checkpoint) -> Outcome:
        """Promote what was refused, if it is allowed now."""
        step = candidate.about["steps"][-1]
        if reason := why_refused(step, self.options.max_drop):
            return self._refused(step, reason)
        self.folder.make_current(self.ledger, PROMOTED, candidate)
        return Outcome("learned", candidate.number, f"version {candidate.number}: {step['verdict']}", step)

    def _chosen(
        self, num_images: int, typical: int, before: Settings | None
    ) -> tuple[Settings, list[str], dict[str, Any]]:
        """Settings for so many new images of a typical shorter side, why, and all that was ever asked for."""
        asked, num_remembered = self.ledger.asked, 0
        if self.parent is not None:
            asked = without_gone(self.parent.about[ASKED])
            num_remembered = len(by_part(self.parent.tensors)["memory"]["lengths"])
        asked = merged(asked, self.options.asked)
        size = DropSize(num_images, num_remembered, int(self.past["next_id"]), self.step, typical)
        device = str(asked.get("device", "auto" if before is None else before.device))
        return *choose(size, before, asked, is_on_gpu(device)), asked

    def _begin(self, pending: Mapping[str, Any], settings: Settings) -> None:
        """Mark this drop as under way, or resume it; refuses where another one is."""
        folder, begun = self.folder, self.begun
        if self._has_begun(pending):
            if wrong := differences(self._begun_settings(), settings):
                raise UserError(
                    f"a drop is half learned with other settings ({'; '.join(wrong)}); --restart begins it anew"
                )
            return
        if begun and not begun.get("refused"):
            raise UserError(
                f"{folder.path} is in the middle of learning {begun['name']!r} ({begun['num_images']} "
                "images): give the same images again to resume, or --restart to forget them"
            )
        if is_begun(folder):
            which = f"drop {begun['name']!r}, which was refused," if begun else "unfinished drop"
            self.display.note(f"the {which} is forgotten")
            for path in sorted(folder.learning.iterdir(), key=lambda path: path.name == DROP):  # the mark last
                if path.name != UNPACKED:  # what was just unpacked is of this drop
                    discard(path)
        folder.write(self.ledger)  # first: it marks the folder as an encoder folder
        folder.learning.mkdir(parents=True, exist_ok=True)
        write_file(folder.learning / DROP, seal({**pending, "folder": self.ledger.identity, "began": time.time()}))

    def _train(
        self, settings: Settings, learner: Learner, viewer: Viewer, images: ImageSource, fingerprint: str
    ) -> list[str]:
        """Learn; why it was stopped before its end, in words, if it was."""
        if self.parent is not None:
            parts = by_part(self.parent.tensors)
            if self.step:  # version 0 holds an encoder alone, with which the learner was built
                load_learner(learner, parts["learner"])
            learner.memory.load_state_dict(parts["memory"])
        about = {"state": str(self.folder.path), "step": self.step + 1, "code": code_hash(), "torch": torch.__version__}
        session = Session(self.folder.learning, settings, about, self.display, self.stop)
        sizes = [*[0] * self.step, len(images)]  # what came before is learned
        self.display.run_begins(self.options.name, sizes, settings.epochs, self.step)
        with session.reporting():
            progress = session.resume(learner, fingerprint) or Progress(self.step)
            clusters = settings.memory.clusters
            plan, selection = build_plan(settings), build_selection(settings)
            watch = Observers(session.observer, CollapseWatch(self.folder, settings, learner, viewer, images))
            loop = Loop(learner, viewer, plan, progress, selection, watch, session.save)
            groups = min(clusters, len(images)) if isinstance(clusters, int) else None  # None: to be estimated
            try:
                loop.learn_step(images, groups, int(self.past["next_id"]))
            except CollapsedError as collapsed:
                return [str(collapsed)]
        return []

    def _about(self, new: Gathered, learner: Learner) -> dict[str, Any]:
        """What the folder records of this step, beside its judgement."""
        return {
            "step": self.step + 1,
            "name": self.options.name,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "num_images": len(new.source),
            "num_known": new.num_known,
            "num_repeated": new.num_repeated,
            "num_remembered": len(learner.memory),
            "num_kept": int((learner.memory.steps == self.step).sum()),
            "memory_bytes": sum(map(len, learner.memory.files)),
            "seconds": round(sum(float(row.get("seconds", 0.0)) for row in read_rows(self.folder.learning)), 1),
        }

    def _kept(self, number: int) -> Path:
        """The folder of what is kept of the drop beside its version."""
        return self.folder.path / STEPS / f"{number:08d}"

    def _keep(
        self, settings: Settings, learner: Learner, new: Gathered, step: dict[str, Any], pending: Mapping[str, Any]
    ) -> Outcome:
        """Write everything beside first; the ledger then makes the version current, or a candidate."""
        folder, ledger, number = self.folder, self.ledger, int(pending["version"])
        step["version"], reason = number, why_refused(step, self.options.max_drop)
        parts = {"learner": learner.state_dict(), "memory": learner.memory.state_dict()}
        num_seen = self.past["next_id"] + len(new.digests)
        past = self.past | {"steps": [*self.past["steps"], step], "next_id": num_seen}
        about = {ASKED: pending["asked"], "drop": {name: pending[name] for name in _WHICH}, REFUSED: reason}
        seen = self.seen + b"".join(new.digests)
        folder.save(ledger, number, ledger.current, parts, seen, past, settings, about)
        files = {}
        for name in (METRICS, BAD_IMAGES, PROBE):
            if (folder.learning / name).exists():
                content = (folder.learning / name).read_bytes()
                files[name] = hashlib.sha256(content).hexdigest()
                write_file(self._kept(number) / name, content)
        if reason:
            ledger.record(REFUSED, reason=reason, files=files, **step)
        else:
            folder.write_settings(settings)
            ledger.current = number
            ledger.record(LEARNED, files=files, **step)
        folder.write(ledger)
        folder.forget_learning()
        folder.prune(ledger, self.options.keep_versions)
        if reason:
            return self._refused(step, reason)
        return Outcome("learned", number, f"version {number}: {step['verdict']} {kept_sentence(step, num_seen)}", step)

    def _refused(self, step: Mapping[str, Any], reason: str) -> Outcome:
        number, path = step["version"], self.folder.path
        advice = f"it stays as candidate {number}: look at it with --version {number}, `ccl promote {path}` takes it"
        return Outcome("refused", self.ledger.current, f"version {number} is not promoted: {reason}; {advice}", step)


def is_begun(folder: EncoderFolder) -> bool:
    """Whether a drop is under way."""
    return (folder.learning / DROP).exists()


def read_begun(folder: EncoderFolder, identity: str) -> dict[str, Any]:
    """The drop under way in the folder of this identity, {} for none."""
    path = folder.learning / DROP
    if not path.exists():
        if (folder.learning / CHECKPOINTS).exists():
            raise UserError(f"{path} is missing; --restart forgets the unfinished drop")
        return {}
    try:
        begun = dict(json.loads(content := path.read_bytes()))
        if "version" in begun or "sha256" in begun:  # of format 2
            begun = unseal(content)
            if begun.get("folder", identity) != identity:
                raise ValueError("it is of another encoder folder")
        return begun | {"parent": int(begun["parent"])}
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); --restart forgets the unfinished drop") from None


def _digests(seen: bytes) -> set[bytes]:
    return {seen[start : start + DIGEST] for start in range(0, len(seen), DIGEST)}


def _plan(settings: Settings, new: Gathered, num_remembered: int, folder: Path, keep_versions: int) -> list[str]:
    """A line each on the drop, its time, the memory and the disk that it takes; measures this machine for seconds."""
    num_new = len(new.source)
    drop = work(settings, [num_new], [num_remembered])
    seconds = seconds_here(settings, drop.share_old)
    image_bytes = 3 * (settings.data.resize or settings.views.to_recipe().size) ** 2
    held = (num_new + num_remembered) * image_bytes if settings.data.resize else 0
    learner = learner_bytes(settings)
    network = sum(learner.values())
    version = network - learner["gradients"] + _memory_bytes(settings, new, num_new + num_remembered, image_bytes)
    on_disk = keep_versions * version + settings.checkpoint.keep * version
    free = shutil.disk_usage(next(path for path in folder.absolute().parents if path.exists())).free
    old = f" and {num_remembered:,} remembered" if num_remembered else ""
    epochs = f"{counted(settings.epochs, 'epoch')} in batches of {settings.batch_size}"
    rows = {
        "drop": f"{counted(num_new, 'new image')}{old}, {epochs}",
        "time": f"about {clock(drop.cost * seconds)} here, at {1 / seconds:,.0f} images/s measured just now; "
        "other work makes it longer; a probe and the check of its health come on top",
        "memory": f"about {size(network + held)}: networks and {size(held)} of images; a batch and torch itself on top",
        "disk": f"about {size(version)} a version, {size(on_disk)} for {keep_versions} of them and for checkpoints; "
        f"{size(free)} are free",
    }
    return [f"{term:<8} {words}" for term, words in rows.items()]


def _memory_bytes(settings: Settings, new: Gathered, num_images: int, image_bytes: int) -> int:
    """Bytes of the remembered images as files; an upper bound where their compression is not known."""
    selection = build_selection(settings)
    if selection is None:
        return 0
    if selection.budget is not None and selection.budget.unit == "bytes":
        return selection.budget.limit
    limit = num_images if selection.budget is None else selection.budget.limit
    original = float(new.file_sizes.double().mean()) or image_bytes
    return int(min(num_images, limit) * (original if settings.data.resize is None else min(original, image_bytes)))
