"""When a run is probed, and where the results are recorded."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ccl.data import chain
from ccl.encoders import Encoder, extract
from ccl.evaluation import AccuracyMatrix, ProbeResult, fit_paper, probe_stream
from ccl.evaluation.paper_probe import PAPER_PROTOCOL
from ccl.evaluation.probe_stream import FitImages
from ccl.runs.session import Session
from ccl.runs.stream_builder import Stream
from ccl.settings import Settings
from ccl.views import Viewer


@dataclass
class Prober:
    """Records a row of the accuracy matrix whenever a probe is due."""

    settings: Settings
    stream: Stream
    encoder: Encoder
    viewer: Viewer
    matrix: AccuracyMatrix
    session: Session

    def after_step(self, step: int) -> None:
        """Probe if a probe is due after this step."""
        options, is_last = self.settings.probe, step == len(self.stream.arrivals) - 1
        if options.after == "each" or (options.after == "last" and is_last):
            self.probe(step)
        if options.adds_paper_accuracy and is_last and self.stream.probe_parts:
            accuracy = paper_accuracy(self.encoder, self.stream, self.viewer, self.settings.seed)
            self.session.log.row("paper_probe", accuracy=accuracy, protocol=PAPER_PROTOCOL)

    def probe(self, after: int | None) -> None:
        """Write one row of the matrix: after a step, counted from 0, or of the random initialisation (None)."""
        parts, log, display = self.stream.probe_parts, self.session.log, self.session.display
        if not parts:
            return
        started = time.perf_counter()
        by_paper = fitting_by_paper(self.encoder, self.viewer, self.settings.seed)
        with by_paper if self.settings.probe.matrix == "paper" else nullcontext() as fit_images:
            result = probe_stream(self.encoder, parts, self.viewer, on_progress=display.probing, fit_images=fit_images)
        # Upper Bound has seen all data after its only step: its row is the last.
        row = None if after is None else after + len(self.stream.steps) - len(self.stream.arrivals)
        self.matrix.record(row, result)
        log.row("probe", **_probe_row(row, result), seconds=round(time.perf_counter() - started, 3))
        log.accuracy(self.matrix)
        display.probed(after, result)
        if after is not None and result.health is not None and result.health.is_collapsed:
            reasons = "; ".join(result.health.reasons)
            display.note(f"after step {after + 1} the embedding looks collapsed: {reasons}")


@contextmanager
def fitting_by_paper(encoder: Encoder, viewer: Viewer, seed: int) -> Iterator[FitImages]:
    """The paper's linear probe of this encoder; its loader workers end with the block."""
    cropping = Viewer(viewer.recipe.for_probe(), seed, viewer.device, viewer.num_workers)
    try:
        yield lambda source, labels: fit_paper(encoder, source, labels, cropping, seed=seed)
    finally:
        cropping.close()


def paper_accuracy(encoder: Encoder, stream: Stream, viewer: Viewer, seed: int) -> float:
    """The all-class accuracy by the paper's protocol: SGD with learning rate 30 over crops and flips, in percent."""
    parts = stream.probe_parts
    labels = torch.cat([part.train_labels for part in parts])
    with fitting_by_paper(encoder, viewer, seed) as fit:
        probe = fit(chain([part.train for part in parts]), labels)
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
