"""One run, from settings to a finished run folder."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ccl.data import chain, write_bad_images
from ccl.encoders import Encoder
from ccl.encoders.reading import extract
from ccl.errors import StoppedError, UserError
from ccl.evaluation import AccuracyMatrix, ProbeResult, fit_paper, probe_stream
from ccl.folder import CHECKPOINTS, is_finished, read_status
from ccl.report import RunLog, RunRecord, read_run
from ccl.report.trackers import make_trackers
from ccl.running.build import (
    Stream,
    build_device,
    build_learner,
    build_plan,
    build_selection,
    build_stream,
    build_viewer,
)
from ccl.running.keeping import keep, peak_memory
from ccl.running.occupancy import locked
from ccl.running.protocol import protocol, worth_knowing
from ccl.running.saving import RunState, stamp
from ccl.settings import Settings
from ccl.training import Observer, Progress, learn_stream
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stopping import StopRequest
from ccl.views import Viewer


class Display(Observer, Protocol):
    """What shows a run to a person."""

    def note(self, text: str) -> None:
        """One line worth knowing."""
        ...

    def run_begins(self, title: str, num_steps: int, epochs: int) -> None: ...

    def loading(self, done: int, total: int) -> None: ...

    def probing(self, done: int, total: int) -> None: ...

    def probed(self, step: int | None, result: ProbeResult) -> None: ...

    def run_ends(self) -> None: ...


class _Both:
    """Two observers as one."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._observers = (first, second)

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        for observer in self._observers:
            observer.step_begins(step, num_new, num_old, is_new)

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        for observer in self._observers:
            observer.updated(step, epoch, losses, num_images, share)

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        for observer in self._observers:
            observer.epoch_ends(step, epoch, learning_rate)


def run(settings: Settings, folder: Path, display: Display) -> RunRecord:
    """Learn the stream that the settings describe, and leave everything in the folder.

    The same call again goes on where it stopped, to the same bits; a finished folder is read and returned.
    """
    with locked(folder), StopRequest() as stop:
        if is_finished(settings, folder):
            display.note(f"{folder} holds this run already, complete; nothing to do")
            return read_run(folder)
        told = settings.model_dump(mode="json")
        trackers = make_trackers(settings.trackers, folder, told, folder.resolve().name, display.note)
        device = build_device(settings)
        stream = build_stream(settings, display.loading)
        for line in worth_knowing(settings, stream):
            display.note(line)
        peak_before = int(read_status(folder).get("peak_memory_bytes", 0))
        log = RunLog(folder, settings, protocol(settings, stream, device), trackers)
        try:
            _learn(settings, stream, device, log, display, stop)
        except StoppedError as stopped:
            log.status("stopped", reason=str(stopped), peak_memory_bytes=max(peak_before, peak_memory()))
            raise
        except Exception as error:
            log.status("failed", reason=str(error))
            raise
        finally:
            display.run_ends()
        log.status("complete", peak_memory_bytes=max(peak_before, peak_memory()))
    return read_run(folder)


def _learn(
    settings: Settings, stream: Stream, device: torch.device, log: RunLog, display: Display, stop: StopRequest
) -> None:
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    matrix = AccuracyMatrix(len(stream.steps))
    options = settings.checkpoint
    store = CheckpointStore(log.folder / CHECKPOINTS, options.keep)
    made = stamp(settings, stream.dataset.fingerprint)
    state = RunState(learner, matrix, log, store, minutes=options.minutes, stop=stop, stamp=made)
    if stream.dataset.skipped:
        write_bad_images(log.folder / "bad_images.csv", stream.dataset.skipped)
    display.run_begins(settings.strategy, len(stream.arrivals), settings.epochs)
    prober = Prober(settings, stream, learner.encoder, viewer, matrix, log, display)
    progress = _go_on(state, store, display)
    if progress is None:
        progress = Progress()
        log.begin()
        if settings.probe.after != "never":
            prober.probe(None)
        state.save(progress, "phase")
    elif change := state.changed("epochs"):
        display.note(f"epochs changed from {change[0]} to {change[1]}: the steps from here on follow it")
        log.row("changed", epochs=change)
    learn_stream(
        learner,
        stream.arrivals,
        viewer,
        build_plan(settings),
        selection=build_selection(settings),
        num_clusters=stream.num_clusters,
        observer=_Both(log, display),
        after_step=prober.after_step,
        progress=progress,
        save=state.save,
    )
    keep(learner, stream, viewer, log.folder)
    viewer.close()


def _go_on(state: RunState, store: CheckpointStore, display: Display) -> Progress | None:
    """The newest good checkpoint, with a word to the user; None to begin at the beginning."""
    store.clean()
    progress = state.restore()
    for path, reason in store.bad:
        display.note(f"passed over a bad checkpoint: {path}: {reason}")
    if progress is None:
        return None
    if change := state.changed("data"):
        raise UserError(
            f"the data is not what this run began with (fingerprint {change[0]}, now {change[1]}); restore it"
        )
    for name in ("threads", "torch"):
        if change := state.changed(name):
            told = f"{name} changed since the checkpoint ({change[0]} -> {change[1]})"
            display.note(f"{told}: the outcome will be near, not equal bit for bit")
    where = f"step {progress.step + 1}"
    if progress.phase == "train":
        display.note(f"going on at {where}, epoch {progress.epoch + 1}, batch {progress.batch + 1}")
    else:
        display.note(f"going on after the training of {where}")
    return progress


class Prober:
    """Writes a row of the accuracy matrix when its time has come."""

    def __init__(
        self,
        settings: Settings,
        stream: Stream,
        encoder: Encoder,
        viewer: Viewer,
        matrix: AccuracyMatrix,
        log: RunLog,
        display: Display,
    ) -> None:
        self.after, self.by_paper, self.seed = settings.probe.after, settings.probe.paper_protocol, settings.seed
        self.stream, self.encoder, self.viewer = stream, encoder, viewer
        self.matrix, self.log, self.display = matrix, log, display

    def after_step(self, step: int) -> None:
        """Probe if a probe is due after this step."""
        is_last = step == len(self.stream.arrivals) - 1
        if self.after == "each" or (self.after == "last" and is_last):
            self.probe(step)
        if self.by_paper and is_last and self.stream.probe_parts:
            accuracy = paper_accuracy(self.encoder, self.stream, self.viewer, self.seed)
            self.log.row("paper_probe", accuracy=accuracy)

    def probe(self, after: int | None) -> None:
        """Write one row of the matrix: after a step, counted from 0, or of the random initialisation (None)."""
        if not self.stream.probe_parts:
            return
        started = time.perf_counter()
        result = probe_stream(self.encoder, self.stream.probe_parts, self.viewer, on_progress=self.display.probing)
        # Upper Bound has seen all data after its only step: its row is the last.
        row = None if after is None else after + len(self.stream.steps) - len(self.stream.arrivals)
        self.matrix.record(row, result)
        self.log.row("probe", **_probe_row(row, result), seconds=round(time.perf_counter() - started, 3))
        self.log.accuracy(self.matrix)
        self.display.probed(after, result)
        if after is not None and result.health is not None and result.health.is_collapsed:
            reasons = "; ".join(result.health.reasons)
            self.display.note(f"after step {after + 1} the embedding looks collapsed: {reasons}")


def paper_accuracy(encoder: Encoder, stream: Stream, viewer: Viewer, seed: int) -> float:
    """The all-class accuracy by the paper's protocol: SGD with learning rate 30 over crops and flips, in percent."""
    parts = stream.probe_parts
    cropping = Viewer(viewer.recipe.for_probe(), seed, viewer.device, viewer.num_workers)
    labels = torch.cat([part.train_labels for part in parts])
    probe = fit_paper(encoder, chain([part.train for part in parts]), labels, cropping, seed=seed)
    features = extract(encoder, chain([part.test for part in parts]), viewer)
    return probe.accuracy(features, torch.cat([part.test_labels for part in parts]))


def _probe_row(row: int | None, result: ProbeResult) -> dict[str, Any]:
    values: dict[str, Any] = {
        "after": 0 if row is None else row + 1,
        "per_step": list(result.per_step),
        "all_class": list(result.all_class),
        "all_class_total": result.all_class_total,
        "knn_total": result.knn_total,
        "protocol": result.protocol,
    }
    if result.health is not None:
        values["effective_rank"] = result.health.effective_rank
        values["mean_cosine"] = result.health.mean_cosine
    return values
