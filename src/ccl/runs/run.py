"""One run, from settings to a finished run folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from ccl import ranks
from ccl.data import write_bad_images
from ccl.errors import StoppedError, UserError
from ccl.evaluation import AccuracyMatrix, ProbeResult
from ccl.folder import CHECKPOINTS, is_finished, read_status
from ccl.report import RunLog, RunRecord, read_run
from ccl.report.trackers import make_trackers
from ccl.runs.build import (
    Stream,
    build_device,
    build_learner,
    build_plan,
    build_selection,
    build_stream,
    build_viewer,
)
from ccl.runs.run_outputs import keep
from ccl.runs.folder_lock import locked
from ccl.runs.probing import Prober
from ccl.runs.protocol import protocol, worth_knowing
from ccl.runs.process_memory import peak_memory
from ccl.runs.run_checkpoint import RunState, resume, stamp
from ccl.runs.silence import SilentDisplay, SilentLog
from ccl.settings import Settings
from ccl.training import Observer, Progress, Remembered, learn_stream
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stopping import StopRequest


class Display(Observer, Protocol):
    """What shows a run to a person."""

    def note(self, text: str) -> None:
        """One line worth knowing."""
        ...

    def run_begins(self, title: str, num_steps: int, epochs: int, first_step: int = 0) -> None: ...

    def loading(self, done: int, total: int) -> None: ...

    def probing(self, done: int, total: int) -> None: ...

    def probed(self, step: int | None, result: ProbeResult) -> None: ...

    def run_ends(self) -> None: ...


class Both:
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

    def remembered(self, step: int, what: Remembered) -> None:
        for observer in self._observers:
            observer.remembered(step, what)


def run(settings: Settings, folder: Path, display: Display) -> RunRecord:
    """Learn the stream that the settings describe, and leave everything in the folder.

    The same call again goes on where it stopped, to the same bits; a finished folder is read and returned. Where there
    are several ranks, all make this call, and the first alone holds the folder, writes and shows.
    """
    display = display if ranks.is_first() else SilentDisplay()
    with ExitStack() as held, StopRequest() as stop:
        if ranks.from_first(lambda: _claim(held, settings, folder)):
            display.note(f"{folder} holds this run already, complete; nothing to do")
            return read_run(folder)
        told = settings.model_dump(mode="json")
        trackers = make_trackers(settings.trackers, folder, told, folder.resolve().name, display.note)
        device = build_device(settings)
        stream = build_stream(settings, display.loading)
        for line in worth_knowing(settings, stream):
            display.note(line)
        peak_before = int(read_status(folder).get("peak_memory_bytes", 0))
        about = protocol(settings, stream, device)
        log = RunLog(folder, settings, about, trackers) if ranks.is_first() else SilentLog(folder)
        try:
            with stop.instead_of(ConnectionError):  # a signal that ended another rank came here too
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
        ranks.wait()
    return read_run(folder)


def _claim(held: ExitStack, settings: Settings, folder: Path) -> bool:
    """Hold the folder until `held` ends; whether its run is complete."""
    held.enter_context(locked(folder))
    return is_finished(settings, folder)


def _learn(
    settings: Settings,
    stream: Stream,
    device: torch.device,
    log: RunLog | SilentLog,
    display: Display,
    stop: StopRequest,
) -> None:
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    matrix = AccuracyMatrix(len(stream.steps))
    options = settings.checkpoint
    store = CheckpointStore(log.folder / CHECKPOINTS, options.keep)
    made = stamp(settings, stream.dataset.fingerprint)
    _refuse_differences(made)
    state = RunState(learner, log, store, others={"accuracy": matrix}, minutes=options.minutes, stop=stop, stamp=made)
    if stream.dataset.skipped and ranks.is_first():
        write_bad_images(log.folder / "bad_images.csv", stream.dataset.skipped)
    display.run_begins(settings.strategy, len(stream.arrivals), settings.epochs)
    prober = Prober(settings, stream, learner.encoder, viewer, matrix, log, display)
    progress = resume(state, display)
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
        observer=Both(log, display),
        after_step=prober.after_step,
        progress=progress,
        save=state.save,
    )
    keep(learner, stream, viewer, log.folder)
    viewer.close()


def _refuse_differences(made: Mapping[str, Any]) -> None:
    """All ranks must have read the same settings and data: else they would wait for each other in vain."""
    firsts = ranks.from_first(lambda: dict(made))
    for name in ("settings", "data"):
        if made[name] != firsts[name]:
            raise UserError(f"rank {ranks.rank()} has other {name} than the first; all machines need the same")
