"""One run, from settings to a finished run folder."""

import json
from contextlib import ExitStack
from pathlib import Path

import torch

from ccl import ranks
from ccl.data import write_bad_images
from ccl.evaluation import AccuracyMatrix
from ccl.run_files import CHECKPOINTS, PROTOCOL, is_finished
from ccl.runs.build import (
    Stream,
    build_device,
    build_learner,
    build_plan,
    build_selection,
    build_stream,
    build_viewer,
)
from ccl.runs.folder_lock import locked
from ccl.runs.forecast import refuse_too_large
from ccl.runs.probing import Prober
from ccl.runs.protocol import protocol, worth_knowing
from ccl.runs.run_folder import RunRecord, read_run
from ccl.runs.run_outputs import keep, stored
from ccl.runs.session import Session
from ccl.runs.start import Start, build_start, resolved
from ccl.runs.trackers import make_trackers
from ccl.settings import Settings
from ccl.training import Observer, Progress, learn_stream
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stop_signals import StopRequest


def run(settings: Settings, folder: str | Path, display: Observer | None = None) -> RunRecord:
    """Learn the stream that the settings describe, and leave everything in the folder.

    The same call again resumes where it stopped, to the same bits; a finished folder is read and returned. Where there
    are several ranks, all make this call, and the first alone holds the folder, writes and shows.

    >>> few = ["dataset=symbols", "steps=2", "data.images_per_class=4", "epochs=1", "batch_size=8", "probe.after=never"]
    >>> record = ccl.run(ccl.load_settings("demo", [*few, "encoder.width=4", "memory.per_cluster=1"]), "runs/first")
    >>> record.status["state"], record.step_names
    ('complete', ['step 1', 'step 2'])
    """
    folder = Path(folder)
    display = display if display is not None and ranks.is_first() else Observer()
    with ExitStack() as held, StopRequest() as stop:
        if ranks.from_first(lambda: _claim(held, settings, folder)):
            display.note(f"{folder} holds this run already, complete; nothing to do")
            return read_run(folder)
        settings = resolved(settings)
        start = ranks.from_first(lambda: _start(settings, folder))
        values = settings.model_dump(mode="json")
        trackers = make_trackers(settings.trackers, folder, values, folder.resolve().name, display.note)
        device = build_device(settings)
        refuse_too_large(settings, device)
        stream = build_stream(settings, display.loading)
        for line in [*worth_knowing(settings, stream), *([start.line] if start else [])]:
            display.note(line)
        about = protocol(settings, stream, device) | _weights(start, folder)
        session = Session(folder, settings, about, display, stop, trackers)
        with session.reporting():
            _learn(settings, stream, device, session, start)
        ranks.wait()
    return read_run(folder)


def _claim(held: ExitStack, settings: Settings, folder: Path) -> bool:
    """Hold the folder until `held` ends; whether its run is complete."""
    held.enter_context(locked(folder))
    return is_finished(settings, folder)


def _start(settings: Settings, folder: Path) -> Start | None:
    """What the encoder starts from; None where it starts from nothing, or from a checkpoint, which has all of it."""
    return None if CheckpointStore(folder / CHECKPOINTS).numbers() else build_start(settings)


def _weights(start: Start | None, folder: Path) -> dict[str, str]:
    """What the protocol says of the weights: of a resumed run, what it said when they were read."""
    if start is not None:
        return {"weights": f"{start.line}; SHA-256 {start.sha256 or 'unknown'}"}
    try:
        said = json.loads((folder / PROTOCOL).read_text(encoding="utf-8")).get("weights")
    except (OSError, ValueError, AttributeError):
        return {}
    return {} if said is None else {"weights": str(said)}


def _learn(settings: Settings, stream: Stream, device: torch.device, session: Session, start: Start | None) -> None:
    learner = build_learner(settings, device, start.tensors if start else None)
    viewer = build_viewer(settings, device)
    matrix, dataset = AccuracyMatrix(len(stream.steps)), stream.dataset
    if dataset.skipped and ranks.is_first():
        write_bad_images(session.log.folder / "bad_images.csv", dataset.skipped)
    session.display.run_begins(settings.strategy, [len(images) for images in stream.arrivals], settings.epochs)
    prober = Prober(settings, stream, learner.product, viewer, matrix, session)
    progress = session.resume(learner, dataset.fingerprint, {"accuracy": matrix})
    if progress is None:
        progress = Progress()
        if settings.probe.after != "never":
            prober.probe(None)
        session.save(progress, "phase")
    learn_stream(
        learner,
        stream.arrivals,
        viewer,
        build_plan(settings),
        selection=build_selection(settings),
        num_clusters=stream.num_clusters,
        observer=session.observer,
        after_step=prober.after_step,
        progress=progress,
        save=session.save,
    )
    keep(learner, stream, viewer, session.log.folder)
    session.outcome["stored_bytes"] = stored(learner)
    viewer.close()
