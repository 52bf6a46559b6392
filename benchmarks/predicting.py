"""Does `--dry-run` predict? Its estimate against the CPU time of short runs of different kinds, back to back."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import Row
from ccl import run
from ccl.loading import load_settings
from ccl.runs.forecast import seconds_here, work_of

_SMALL_RESNET = ("encoder.backbone=resnet18", "encoder.width=16", "data.images_per_class=40", "epochs=3")
_LARGE_RESNET = (
    "encoder.backbone=resnet18",
    "dataset=digits",
    "steps=2",
    "data.resize=32",
    "views.size=32",
    "epochs=2",
)
_KINDS = {
    "ConvNet, 16 px, CCL": ("strategy=ccl", "epochs=8"),
    "ConvNet, 16 px, Finetuning": ("strategy=finetuning", "epochs=8"),
    "ResNet-18 w16, 16 px, CCL": ("strategy=ccl", *_SMALL_RESNET),
    "ResNet-18 w16, 16 px, Finetuning": ("strategy=finetuning", *_SMALL_RESNET),
    "ResNet-18 w64, 32 px, CCL": ("strategy=ccl", *_LARGE_RESNET, "data.images_per_class=20", "batch_size=50"),
}


def cost_model() -> Iterator[Row]:
    """How far the estimate is off, as a share of the run; without probes, which the estimate leaves out."""
    for name, words in _KINDS.items():
        settings = load_settings("demo", [*words, "probe.after=never", "threads=1"])
        work = work_of(settings)
        before = seconds_here(settings, work.share_old, now=time.process_time)
        started = time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            run(settings, Path(scratch) / "run")
        real = time.process_time() - started
        after = seconds_here(settings, work.share_old, now=time.process_time)
        foretold = work.cost * (before + after) / 2
        yield Row(f"cost model, {name}: share it is off", abs(foretold / real - 1), 0.2, at_least=False)
