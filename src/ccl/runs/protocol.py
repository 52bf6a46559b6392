"""What a run says of itself before it begins: the protocol its numbers are stamped with, and what is worth knowing."""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ccl import ranks
from ccl.data import describe
from ccl.runs.build import Stream, uses_channels_last
from ccl.settings import Settings
from ccl.training.precision import choose

# What the accuracy matrix says of streams whose steps share classes.
_READING = {
    "data": "steps are random parts of the same classes: what little Forgetting they show is mostly noise",
    "blurred": "a step is probed on all images of its own classes, also on those that arrive in other steps",
    "free": "steps are chunks of a drifting stream: each is probed on test images of the same stretch of time",
}


def worth_knowing(settings: Settings, stream: Stream) -> list[str]:
    """Lines for the user: the stream's shape, files left out, and what may surprise."""
    lines = [f"{stream.dataset.name}: {describe(stream.steps)}", *stream.dataset.notes]
    if stream.dataset.skipped:
        bad = stream.dataset.skipped
        lines.append(f"{len(bad)} files are not usable images and left out (bad_images.csv), e.g. {bad[0]}")
    smallest = min(len(source) for source in stream.arrivals)
    if settings.objective == "moco_v2" and settings.moco_v2.queue_size > smallest:
        lines.append(
            f"the queue ({settings.moco_v2.queue_size}) exceeds a step's {smallest} images, so it holds keys of the "
            "query's own image; consider a smaller moco_v2.queue_size or moco_v2.mask_same_image=true"
        )
    if stream.probe_parts and settings.stream_kind in _READING:
        lines.append(f"{_READING[settings.stream_kind]} (docs/streams.md)")
    if not stream.probe_parts:
        lines.append("no labels or no test part: accuracy is not measured")
    return lines


def protocol(settings: Settings, stream: Stream, device: torch.device) -> dict[str, Any]:
    """What a number of this run must be read with: data, stream, network, probe, code and machine."""
    dtype = choose(settings.precision, device)
    order = "|".join(",".join(map(str, step.classes)) for step in stream.steps)
    return {
        "dataset": stream.dataset.name,
        "fingerprint": stream.dataset.fingerprint,
        "num_classes": len(stream.dataset.class_names),
        "stream": settings.stream_kind,
        "class_order": hashlib.sha256(order.encode()).hexdigest()[:16],
        "steps": _steps(stream),
        "all_at_once": settings.method.all_at_once,
        "backbone": settings.encoder.backbone,
        "stem": settings.encoder.stem,
        "statistics": settings.encoder.statistics,
        "views": settings.views.recipe,
        "probe": "linear, frozen features, after training (offline); see 'protocol' of each probe row",
        "seed": settings.seed,
        "ccl": version("ccl"),
        "code": code_hash(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "channels_last": uses_channels_last(settings, device, dtype),
        "threads": torch.get_num_threads(),
        "world_size": ranks.size(),
    }


def _steps(stream: Stream) -> list[dict[str, Any]]:
    """What each step brings, and on how many images it is tested, where it is."""
    found: list[dict[str, Any]] = [
        {"name": step.name, "num_classes": len(step.classes), "num_images": len(step.indices)} for step in stream.steps
    ]
    for about, part in zip(found, stream.probe_parts, strict=False):
        about["num_test_images"] = len(part.test)
    return found


def code_hash() -> str:
    """Ten digits that change with any line of this package: a version alone does not separate two working copies."""
    package = Path(__file__).parents[1]
    state = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        state.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:10]
