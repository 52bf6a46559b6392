"""One run, from settings to a finished run folder."""

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from ccl.build import (
    Stream,
    build_device,
    build_learner,
    build_plan,
    build_selection,
    build_stream,
    build_viewer,
)
from ccl.data import describe, write_bad_images
from ccl.encoders import Encoder
from ccl.errors import UserError
from ccl.evaluation import AccuracyMatrix, ProbeResult, fit_paper, probe_stream
from ccl.report import RunLog, RunRecord, read_run
from ccl.settings import Settings
from ccl.strategies import STRATEGIES
from ccl.training import Learner, Observer, learn_stream
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

    def step_begins(self, step: int, num_new: int, num_old: int, batches_per_epoch: int) -> None:
        for observer in self._observers:
            observer.step_begins(step, num_new, num_old, batches_per_epoch)

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int) -> None:
        for observer in self._observers:
            observer.updated(step, epoch, losses, num_images)

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        for observer in self._observers:
            observer.epoch_ends(step, epoch, learning_rate)


def run(settings: Settings, folder: Path, display: Display) -> RunRecord:
    """Learn the stream that the settings describe, and leave everything in the folder.

    A finished folder is read and returned; an unfinished or foreign one is refused, so that nothing is overwritten.
    """
    finished = _occupied(settings, folder)
    if finished is not None:
        display.note(f"{folder} holds this run already, complete; nothing to do")
        return finished
    device = build_device(settings)
    stream = build_stream(settings, display.loading)
    for line in _worth_knowing(settings, stream):
        display.note(line)
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    log = RunLog(folder, settings, protocol(settings, stream, device))
    if stream.dataset.skipped:
        write_bad_images(folder / "bad_images.csv", stream.dataset.skipped)
    try:
        _learn(settings, stream, learner, viewer, log, display)
    except KeyboardInterrupt:
        log.status("stopped")
        raise
    except Exception as error:
        log.status("failed", reason=str(error))
        raise
    finally:
        display.run_ends()
    _keep(learner, folder)
    log.status("complete")
    return read_run(folder)


def _learn(settings: Settings, stream: Stream, learner: Learner, viewer: Viewer, log: RunLog, display: Display) -> None:
    matrix = AccuracyMatrix(len(stream.steps))
    num_arrivals = len(stream.arrivals)
    display.run_begins(settings.strategy, num_arrivals, settings.epochs)

    def probe(after: int | None) -> None:
        """Write one row of the matrix: after a step, counted from 0, or of the random initialisation (None)."""
        if not stream.probe_parts:
            return
        started = time.perf_counter()
        result = probe_stream(learner.encoder, stream.probe_parts, viewer, on_progress=display.probing)
        # Upper Bound has seen all data after its only step: its row is the last.
        row = None if after is None else after + len(stream.steps) - num_arrivals
        matrix.record(row, result)
        log.row("probe", **_probe_row(row, result), seconds=round(time.perf_counter() - started, 3))
        log.accuracy(matrix)
        display.probed(after, result)
        if after is not None and result.health is not None and result.health.is_collapsed:
            display.note(f"after step {after + 1} the embedding looks collapsed: {'; '.join(result.health.reasons)}")

    def after_step(step: int) -> None:
        if settings.probe.after == "each" or (settings.probe.after == "last" and step == num_arrivals - 1):
            probe(step)
        if settings.probe.paper_protocol and step == num_arrivals - 1 and stream.probe_parts:
            log.row("paper_probe", accuracy=paper_accuracy(learner.encoder, stream, viewer, settings.seed))

    if settings.probe.after != "never":
        probe(None)
    learn_stream(
        learner,
        stream.arrivals,
        viewer,
        build_plan(settings),
        selection=build_selection(settings),
        num_clusters=stream.num_clusters,
        observer=_Both(log, display),
        after_step=after_step,
    )


def paper_accuracy(encoder: Encoder, stream: Stream, viewer: Viewer, seed: int) -> float:
    """The all-class accuracy by the paper's protocol: SGD with learning rate 30 over crops and flips, in percent."""
    from ccl.data import chain
    from ccl.encoders.reading import extract

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


def _occupied(settings: Settings, folder: Path) -> RunRecord | None:
    """The record of the same run, finished; None for a free place; an error for anything else."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} is a file; name a folder")
        if not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise UserError(f"--out {folder} can't be written to")
            return None
    except OSError as error:
        raise UserError(f"--out {folder} can't be made: {error.strerror}") from None
    record = read_run(folder)
    if record.settings != settings:
        raise UserError(f"--out {folder} holds a run with other settings; name another folder")
    if record.status.get("state") != "complete":
        raise UserError(f"--out {folder} holds an unfinished run; remove it or name another folder")
    return record


def _worth_knowing(settings: Settings, stream: Stream) -> list[str]:
    lines = [f"{stream.dataset.name}: {describe(stream.steps)}", *stream.dataset.notes]
    if stream.dataset.skipped:
        bad = stream.dataset.skipped
        lines.append(f"{len(bad)} files are no usable images and left out (bad_images.csv), e.g. {bad[0]}")
    smallest = min(len(source) for source in stream.arrivals)
    if settings.objective == "moco_v2" and settings.moco_v2.queue_size > smallest:
        lines.append(
            f"the queue ({settings.moco_v2.queue_size}) exceeds a step's {smallest} images, so it holds keys of the "
            "query's own image; consider a smaller moco_v2.queue_size or moco_v2.mask_same_image=true"
        )
    if not stream.probe_parts:
        lines.append("no labels or no test part: accuracy is not measured")
    return lines


def protocol(settings: Settings, stream: Stream, device: torch.device) -> dict[str, Any]:
    """What a number of this run must be read with: data, stream, network, probe, code and machine."""
    order = "|".join(",".join(map(str, step.classes)) for step in stream.steps)
    return {
        "dataset": stream.dataset.name,
        "fingerprint": stream.dataset.fingerprint,
        "num_classes": len(stream.dataset.class_names),
        "class_order": hashlib.sha256(order.encode()).hexdigest()[:16],
        "steps": [
            {"name": step.name, "num_classes": len(step.classes), "num_images": len(step.indices)}
            for step in stream.steps
        ],
        "all_at_once": STRATEGIES[settings.strategy].all_at_once,
        "backbone": settings.encoder.backbone,
        "stem": settings.encoder.stem,
        "views": settings.views.recipe,
        "probe": "linear, frozen features, after training (offline); see 'protocol' of each probe row",
        "seed": settings.seed,
        "ccl": version("ccl"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def _keep(learner: Learner, folder: Path) -> None:
    """The encoder's weights and the remembered images."""
    weights = {name: tensor.contiguous().cpu() for name, tensor in learner.encoder.state_dict().items()}
    save_file(weights, folder / "encoder.safetensors")
    if len(learner.memory):
        learner.memory.write(folder / "memory")
