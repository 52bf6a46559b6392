"""One drop into an encoder folder: gathered, learned as the next step of its stream, judged, promoted or refused.

The same call again resumes where it was interrupted, to the same bits; the images are not needed afterwards.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from ccl.atomic_files import write_file
from ccl.continual_encoder.default_settings import FEWEST_IMAGES, changed, refuse_mistakes
from ccl.continual_encoder.drop_outcome import Gather, Options, Outcome
from ccl.continual_encoder.drop_settings import ASKED, asked_until, chosen_settings
from ccl.continual_encoder.encoder_folder import PROBE, STATE, STEPS, EncoderFolder, Ledger
from ccl.continual_encoder.frozen_encoder import student_of
from ccl.continual_encoder.pending_drop import UNPACKED, PendingDrop, fingerprint, forget_stale, is_begun, mark_refused
from ccl.continual_encoder.planning import plan
from ccl.continual_encoder.promotion import CONFUSION, check_labelled, judged, load_labelled, lost_too_much
from ccl.continual_encoder.restoring import load_learner
from ccl.continual_encoder.tables import kept_sentence
from ccl.data import ArraySource, BadImage, Gathered, ImageSource, SquaredSource, squared, write_bad_images
from ccl.errors import UserError
from ccl.run_files import METRICS, read_rows
from ccl.runs.build import build_device, build_learner, build_plan, build_selection, build_viewer
from ccl.runs.folder_lock import locked
from ccl.runs.forecast import refuse_too_large
from ccl.runs.protocol import code_hash
from ccl.runs.run_checkpoint import by_part, joined_parts
from ccl.runs.session import Session
from ccl.section import merged
from ccl.settings import Settings
from ccl.training import Learner, Observer, Progress, learn_step
from ccl.training.checkpoint import Checkpoint
from ccl.training.stop_signals import StopRequest
from ccl.views import Viewer

BAD_IMAGES = "bad_images.csv"


def learn(state: EncoderFolder, gather: Gather, display: Observer, options: Options) -> Outcome:
    """Take a drop in, or resume it."""
    with ExitStack() as held, StopRequest() as stop:
        held.enter_context(locked(state.path, STATE))
        ledger = state.ledger() if state.exists() else Ledger()
        state.sweep(ledger)
        forget_stale(state, ledger)
        try:
            return _Drop(state, ledger, display, options, stop).learn(gather)
        finally:
            display.run_ends()
            if not is_begun(state):  # nothing was begun: leave no trace
                state.forget_learning()


class _Drop:
    """The work on one drop, in the order of its methods."""

    def __init__(
        self, state: EncoderFolder, ledger: Ledger, display: Observer, options: Options, stop: StopRequest
    ) -> None:
        self.state, self.ledger, self.display, self.options, self.stop = state, ledger, display, options, stop
        self.parent = None if state.knows_nothing(ledger) else state.load(ledger.current)
        self.past: dict[str, Any] = dict(self.parent.about) if self.parent else {"steps": [], "seen": [], "next_id": 0}
        self.step = len(self.past["steps"])

    def learn(self, gather: Gather) -> Outcome:
        is_known = self.state.seen(self.past["seen"]).__contains__
        before = self._settings_before()
        self._check_options(before)
        side = None if before is None else before.data.resize
        gathered = gather(self.state.learning / UNPACKED, self.display.loading, side, is_known)
        self.display.run_ends()  # the bar of the gathering
        for line in gathered.notes:
            self.display.note(line)
        new = gathered.without(is_known, first_id=int(self.past["next_id"]))
        self._note_repeats(new)
        if not len(new.source):
            known = "the only image was" if new.num_known == 1 else f"all {new.num_known:,} images were"
            return Outcome("known", self.ledger.current, f"{known} learned before; nothing to do", {})
        if len(new.source) < FEWEST_IMAGES:
            raise UserError(
                f"too few new images to learn from: {len(new.source)} (at least {FEWEST_IMAGES}); "
                "keep them and give them together with the next"
            )
        pending, settings = self._pending(new, before)
        device = build_device(settings)
        refuse_too_large(settings, device)
        if self.options.dry_run:
            num_remembered = len(self.state.memory_of(self.ledger.current)) if self.parent else 0
            lines = plan(settings, new, num_remembered, self.state.path, self.options.keep_versions)
            return Outcome("planned", self.ledger.current, "\n".join(lines), {})
        probe, max_bad = self.options.probe, self.options.max_bad
        labelled = load_labelled(probe, settings.data.resize, max_bad) if probe else None
        pending.begin(self.state, self.ledger, settings, self.options.restart, self.display)
        if gathered.skipped:
            self._note_bad(gathered.skipped)
        images = self._sized(new, settings.data.resize)
        start = student_of(self.parent) if self.parent is not None and self.step == 0 else None
        learner, viewer = build_learner(settings, device, start), build_viewer(settings, device)
        try:
            self._train(settings, learner, viewer, images, pending.fingerprint)
            step = self._about(new, learner) | judged(
                self.state, settings, self.parent, learner, viewer, images, labelled, self.past["steps"]
            )
        finally:
            viewer.close()
        if step["accuracy"] is not None and (confusion := step["accuracy"].pop(CONFUSION, None)):
            write_file(self.state.learning / PROBE, json.dumps(confusion))
        if self.parent is not None and (reason := lost_too_much(step, self.options.max_drop)):
            return self._refuse(step, reason)
        return self._promote(settings, learner, new, step, pending.asked)

    def _sized(self, new: Gathered, side: int | None) -> ImageSource:
        """The images in the size in which they are learned; those of later drops have it already."""
        if side is None:
            return new.source
        squares = squared(new.source, side, self.display.loading)
        self.display.run_ends()
        originals = new.originals or (new.source if new.source.image_size is None else None)
        if originals is None or not isinstance(squares, ArraySource):
            return squares
        return SquaredSource(squares, originals, new.digests)

    def _check_options(self, before: Settings | None) -> None:
        """Refuse mistakes before any image is read, also where none turns out to be new."""
        asked = self.options.asked or {}
        if before is not None:
            changed(before, asked)
        else:
            refuse_mistakes(merged(self.ledger.asked, asked))
        if self.options.probe is not None:
            check_labelled(self.options.probe)

    def _note_repeats(self, new: Gathered) -> None:
        parts = [f"{new.num_known:,} were learned before"] if new.num_known else []
        parts += [f"{new.num_repeated:,} are there twice"] if new.num_repeated else []
        if parts and len(new.source):
            self.display.note(f"{len(new.source):,} new images ({' and '.join(parts)}, by content: left out)")

    def _note_bad(self, bad: Sequence[BadImage]) -> None:
        write_bad_images(self.state.learning / BAD_IMAGES, bad)
        kept = self.state.path / STEPS / f"{self.ledger.latest + 1:08d}" / BAD_IMAGES
        self.display.note(f"{len(bad)} files are not usable images and left out, e.g. {bad[0]}; all in {kept}")

    def _settings_before(self) -> Settings | None:
        """Those of the state; None where they are to be chosen for its first images."""
        is_resumed = is_begun(self.state) and not self.options.restart
        return self.state.settings() if self.parent is not None or is_resumed else None

    def _pending(self, new: Gathered, before: Settings | None) -> tuple[PendingDrop, Settings]:
        """The drop, and its settings: as it began, or chosen for it and kept with it before anything is learned."""
        asked = self.options.asked or {}
        pending = PendingDrop(self.options.name, fingerprint(new), self.ledger.current, len(new.source))
        begun = None if self.options.restart else pending.begun(self.state)
        if begun is not None and before is not None:
            return begun, changed(before, asked)
        before = before if self.parent is not None else None
        asked = merged(asked_until(self.parent, before, self.ledger.asked), asked)
        settings, reasons = chosen_settings(self.parent, before, new, asked)
        for line in reasons:
            self.display.note(line)
        if asked and self.parent is None:
            self.display.note(f"as asked: {', '.join(_flat(asked))}")
        return replace(pending, asked=asked), settings

    def _train(
        self, settings: Settings, learner: Learner, viewer: Viewer, images: ImageSource, fingerprint: str
    ) -> None:
        if self.parent is not None:
            _restore(learner, self.parent)
        about = {"state": str(self.state.path), "step": self.step + 1, "code": code_hash(), "torch": torch.__version__}
        session = Session(self.state.learning, settings, about, self.display, self.stop)
        sizes = [*[0] * self.step, len(images)]  # what came before is learned
        self.display.run_begins(self.options.name, sizes, settings.epochs, self.step)
        with session.reporting():
            progress = session.resume(learner, fingerprint)
            if progress is None:
                progress = Progress(self.step)
            selection, clusters = build_selection(settings), _clusters(settings, len(images))
            plan, observer, num_past = build_plan(settings), session.observer, int(self.past["next_id"])
            if progress.step == self.step:  # drops of ccl 0.1 stand at the next step when they are learned
                learn_step(
                    learner, images, viewer, plan, progress, selection, clusters, num_past, observer, session.save
                )

    def _about(self, new: Gathered, learner: Learner) -> dict[str, Any]:
        """What the state will remember of this step, beside how it was judged."""
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
            "seconds": round(sum(float(row.get("seconds", 0.0)) for row in read_rows(self.state.learning)), 1),
        }

    def _refuse(self, step: Mapping[str, Any], reason: str) -> Outcome:
        """The old version stays current; what was learned stays beside until another drop comes."""
        if mark_refused(self.state):
            self.ledger.record("refused", reason=reason, **step)
            self.state.write(self.ledger)
        return Outcome("refused", self.ledger.current, f"not promoted: {reason}", step)

    def _promote(
        self,
        settings: Settings,
        learner: Learner,
        new: Gathered,
        step: dict[str, Any],
        asked: Mapping[str, Any],
    ) -> Outcome:
        """Everything is written aside first; the ledger's line makes it current."""
        number, num_seen = self.ledger.latest + 1, int(self.past["next_id"]) + len(new.source)
        parts = {"learner": learner.state_dict(), "memory": learner.memory.state_dict()}
        steps = [*self.past["steps"], {**step, "version": number}]
        about = {
            "version": number,
            "parent": self.ledger.current,
            "created": time.time(),
            "steps": steps,
            "seen": [*self.past["seen"], number],
            "next_id": num_seen,
            "strategy": settings.strategy,
            "settings": settings.model_dump(mode="json"),
            ASKED: dict(asked),
            **({"weights": self.past["weights"]} if "weights" in self.past else {}),
        }
        self.state.remember_seen(number, new.digests)
        self.state.versions.save(joined_parts(parts), about, number=number)
        kept = self.state.path / STEPS / f"{number:08d}"
        kept.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, BAD_IMAGES, PROBE):
            if (self.state.learning / name).exists():
                write_file(kept / name, (self.state.learning / name).read_bytes())
        self.state.write_settings(settings)
        self.ledger.current = self.ledger.latest = number
        self.ledger.record("learned", version=number, **step)
        self.state.write(self.ledger)
        self.state.forget_learning()
        self.state.prune(self.ledger, self.options.keep_versions)
        message = f"version {number}: {step['verdict']} {kept_sentence(step, num_seen)}"
        return Outcome("learned", number, message, steps[-1])


def _restore(learner: Learner, version: Checkpoint) -> None:
    parts = by_part(version.tensors)
    if version.about["steps"]:  # version 0 holds an encoder alone, with which the learner was built
        load_learner(learner, parts["learner"])
    learner.memory.load_state_dict(parts["memory"])


def _clusters(settings: Settings, num_images: int) -> int | None:
    """As many as asked for, at most one for each image; None to estimate."""
    asked = settings.memory.clusters
    return min(asked, num_images) if isinstance(asked, int) else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """ "a.b=c" for each value."""
    found = []
    for key, value in values.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}={value}"]
    return found
