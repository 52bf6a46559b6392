"""One run, from settings to a finished run folder: its protocol, its stream, and what it leaves."""

import hashlib
import json
import platform
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes

from ccl import ranks
from ccl.atomic_files import replacing, write_file
from ccl.data import describe, write_bad_images
from ccl.evaluation import AccuracyMatrix, embed_evenly
from ccl.reading import build_device, build_viewer, uses_channels_last
from ccl.runs.build import Start, build_learner, build_plan, build_selection, build_start, resolved
from ccl.runs.folder_lock import locked
from ccl.runs.forecast import refuse_too_large
from ccl.runs.probing import Prober
from ccl.runs.run_folder import (
    BAD_IMAGES,
    CHECKPOINTS,
    EMBEDDINGS,
    ENCODER,
    MEMORY,
    PROTOCOL,
    RunRecord,
    is_finished,
    read_run,
)
from ccl.runs.session import Session, code_hash
from ccl.runs.stream_builder import Stream, build_stream
from ccl.runs.trackers import make_trackers
from ccl.settings import Settings
from ccl.training import Learner, Observer, Progress, learn_stream
from ccl.training.checkpoint import CheckpointStore
from ccl.training.precision import choose
from ccl.training.stop_signals import StopRequest
from ccl.views import Viewer

# What the accuracy matrix says of streams whose steps share classes.
_READING = {
    "data": "steps are random parts of the same classes: what little Forgetting they show is mostly noise",
    "blurred": "a step is probed on all images of its own classes, also on those that arrive in other steps",
    "free": "steps are chunks of a drifting stream: each is probed on test images of the same stretch of time",
}
_FACTS = frozenset({"bytes", "lengths", "ids", "steps", "clusters", "scores"})  # of the memory: images, and about them
_MOST_EMBEDDINGS = 800  # what a picture can show, 200 kB


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
        ranks.from_first(lambda: held.enter_context(locked(folder)))
        if ranks.from_first(lambda: is_finished(settings, folder)):
            display.note(f"{folder} holds this run already, complete; nothing to do")
            return read_run(folder)
        settings = resolved(settings)
        has_checkpoint = bool(CheckpointStore(folder / CHECKPOINTS).numbers())
        start = ranks.from_first(lambda: None if has_checkpoint else build_start(settings))
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


def _weights(start: Start | None, folder: Path) -> dict[str, str]:
    """The protocol's entry on the weights; of a resumed run, the one from when they were read."""
    if start is not None:
        return {"weights": f"{start.line}; SHA-256 {start.sha256 or 'unknown'}"}
    try:
        said = json.loads((folder / PROTOCOL).read_text(encoding="utf-8")).get("weights")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return {} if said is None else {"weights": str(said)}


def _learn(settings: Settings, stream: Stream, device: torch.device, session: Session, start: Start | None) -> None:
    learner = build_learner(settings, device, start.tensors if start else None)
    viewer = build_viewer(settings, device)
    matrix, dataset = AccuracyMatrix(len(stream.steps)), stream.dataset
    if dataset.skipped and ranks.is_first():
        write_bad_images(session.log.folder / BAD_IMAGES, dataset.skipped)
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


def worth_knowing(settings: Settings, stream: Stream) -> list[str]:
    """Notes for the user: the stream's shape, files left out, and unusual settings."""
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
    """The protocol of this run's numbers: data, stream, network, probe, code and machine."""
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
    """The protocol's entry of each step: its images and classes, and the number of test images."""
    found: list[dict[str, Any]] = [
        {"name": step.name, "num_classes": len(step.classes), "num_images": len(step.indices)} for step in stream.steps
    ]
    for about, part in zip(found, stream.probe_parts, strict=False):
        about["num_test_images"] = len(part.test)
    return found


def stored(learner: Learner) -> dict[str, int]:
    """Bytes that must be kept beside the encoder to learn the next step: of images, vectors and other networks."""
    beside = [value for name, value in learner.memory.state_dict().items() if name not in _FACTS]
    vectors, networks = sum(value.nbytes for value in beside), 0
    for part in learner.modules():
        own = sum(parameter.nbytes for parameter in part.parameters(recurse=False))
        buffers = sum(buffer.nbytes for buffer in part.buffers(recurse=False))
        # What lies beside weights, such as batch norm's statistics, is of the network; a module of buffers is a store.
        networks += own + buffers if own else 0
        vectors += 0 if own else buffers
    of_encoder = sum(value.nbytes for value in learner.encoder.state_dict().values())
    return {"images": sum(map(len, learner.memory.files)), "vectors": vectors, "networks": networks - of_encoder}


def keep(learner: Learner, stream: Stream, viewer: Viewer, folder: Path) -> None:
    """The encoder's weights, the remembered images, some test images' embeddings; the first rank writes them."""
    some = embed_evenly(learner.product, stream.probe_parts, viewer, _MOST_EMBEDDINGS) if stream.probe_parts else None
    if not ranks.is_first():
        return
    weights = {name: tensor.contiguous().cpu() for name, tensor in learner.product.state_dict().items()}
    write_file(folder / ENCODER, to_bytes(weights))
    if len(learner.memory):
        learner.memory.write(folder / MEMORY)
    if some is not None:
        rows, steps = some.rows.half().numpy(), some.steps.numpy() + 1
        with replacing(folder / EMBEDDINGS) as unfinished:
            np.savez_compressed(unfinished, embeddings=rows, step=steps, label=some.labels.numpy())
