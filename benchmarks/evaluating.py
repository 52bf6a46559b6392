"""Probes and selection: what is done after a step, against the training of it."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import Row, fastest
from ccl import run
from ccl.encoders import extract
from ccl.evaluation import fit
from ccl.loading import load_settings
from ccl.memory import group, lowest_scores
from ccl.reading import build_viewer
from ccl.runs.build import build_learner, build_selection
from ccl.runs.probing import paper_accuracy
from ccl.runs.session import peak_memory
from ccl.runs.stream_builder import build_stream
from ccl.training import remember


def probe() -> Iterator[Row]:
    """Seconds of the paper's protocol ÷ those of the cached one, and on the small network how far apart they are.

    Networks are fresh: on a large one SGD with a rate of 30 gets nowhere in 600 images, so only its time is told.
    """
    ratio, apart = _protocols("ConvNet", "encoder.backbone=convnet", "data.images_per_class=40")
    yield ratio
    yield apart
    large = ("encoder.backbone=resnet18", "encoder.width=64", "dataset=digits", "data.resize=32", "views.size=32")
    yield _protocols("ResNet-18 w64, 32 px", *large, "steps=1", "data.images_per_class=60")[0]


def _protocols(name: str, *words: str) -> tuple[Row, Row]:
    settings = load_settings("demo", [*words, "threads=1"])
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    parts = stream.probe_parts
    labels, tested = (torch.cat([getattr(part, name) for part in parts]) for name in ("train_labels", "test_labels"))
    started = time.perf_counter()
    train = torch.cat([extract(learner.encoder, part.train, viewer) for part in parts])
    test = torch.cat([extract(learner.encoder, part.test, viewer) for part in parts])
    cached = fit(train, labels).accuracy(test, tested)
    cached_s, started = time.perf_counter() - started, time.perf_counter()
    by_paper = paper_accuracy(learner.encoder, stream, viewer, 0)
    paper_s = time.perf_counter() - started
    return (
        Row(f"probe, {name}: the paper's protocol ÷ the cached, seconds", paper_s / cached_s, 20.0, at_least=True),
        Row(f"probe, {name}: their accuracies apart, in points", abs(by_paper - cached), 0.5, at_least=False),
    )


def selection() -> Iterator[Row]:
    """Seconds of K-Means and 7 forwards ÷ those of a 200-epoch step, extrapolated from measured epochs."""
    words = ["dataset=digits", "steps=1", "encoder.backbone=resnet18", "encoder.width=16", "epochs=3", "threads=1"]
    settings = load_settings("demo", [*words, "probe.after=never"])
    with tempfile.TemporaryDirectory() as scratch:
        record = run(settings, Path(scratch) / "run")
    epoch_s = min(row["seconds"] for row in record.rows if row["kind"] == "epoch")
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    chosen = build_selection(settings)
    assert chosen is not None
    select_s = fastest(lambda: remember(learner, stream.arrivals[0], viewer, 0, 10, chosen), rounds=3)[0]
    yield Row("selection ÷ a step of 200 epochs", select_s / (200 * epoch_s), 0.015, at_least=False)


def large_selection() -> Iterator[Row]:
    """A step of ImageNet-Full, T = 10: 128,000 embeddings in 100 clusters, by what it adds to this process's memory."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(100, 128))
    rows = torch.from_numpy((centres[rng.integers(100, size=128_000)] + rng.normal(size=(128_000, 128))).astype("f"))
    rows = torch.nn.functional.normalize(rows, dim=1)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from here, not from an earlier benchmark's
    before, started = peak_memory(), time.perf_counter()
    lowest_scores(torch.rand(128_000), group(rows, 100, 0), 20)
    seconds = time.perf_counter() - started
    added = (peak_memory() - before) / 1e9
    yield Row("selection of 128,000 × 100 clusters: seconds", seconds, 60.0, at_least=False)
    yield Row("selection of 128,000 × 100 clusters: memory added (GB)", added, 1.0, at_least=False)
