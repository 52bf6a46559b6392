"""Builders: each reads the settings and passes plain keyword arguments on."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ccl import ranks
from ccl.catalogue import foreign_kind, part_name, row_of
from ccl.composition import Composition
from ccl.data import Dataset, ImageSource, Step, chain, load_dataset
from ccl.encoders import Encoder, make_encoder, split_batch_norm
from ccl.encoders.batch_norm_statistics import AccumulatedStatistics
from ccl.encoders.factory import refuse_random
from ccl.errors import UserError, counted
from ccl.evaluation import ProbePart
from ccl.runs.stream_builder import cut_datasets, probe_parts
from ccl.seeding import seeded
from ccl.settings import Settings
from ccl.training import Learner, Plan, Selection
from ccl.training.learner import CONTRAST
from ccl.training.precision import LossScaler, choose
from ccl.views import Viewer


@dataclass(frozen=True)
class Stream:
    """A dataset cut in steps: what arrives when, and how each part is probed."""

    dataset: Dataset
    steps: list[Step]
    arrivals: list[ImageSource]  # D_1 … D_N as the learner gets them; one for Upper Bound
    num_clusters: list[int | None]  # for each arrival; None: to be estimated
    probe_parts: list[ProbePart]  # one for each step; none where labels or a test part are missing


def build_stream(settings: Settings, progress: Callable[[int, int], None] | None = None) -> Stream:
    """Load the data and cut it, and refuse before any training what can't work."""
    data = settings.data
    refuse_ranks(settings)
    if len(set(settings.dataset)) < len(settings.dataset):
        raise UserError(f"dataset names one set twice: {','.join(settings.dataset)}")
    datasets = [
        load_dataset(
            name,
            data.root,
            resize=data.resize,
            classes=data.classes.get(name) if isinstance(data.classes, dict) else data.classes,
            images_per_class=data.images_per_class,
            download=data.download,
            progress=progress,
        )
        for name in settings.dataset
    ]
    dataset, steps = cut_datasets(settings, datasets)
    arrivals = [dataset.train.subset(step.indices) for step in steps]
    num_classes = [len(step.classes) for step in steps]
    if settings.method.all_at_once:
        arrivals, num_classes = [chain(arrivals)], [sum(num_classes)]
    asked = settings.memory.clusters
    num_clusters = [None if asked == "estimate" else asked or count for count in num_classes]
    stream = Stream(dataset, steps, arrivals, num_clusters, probe_parts(settings, dataset, steps))
    _check(settings, stream)
    return stream


def _check(settings: Settings, stream: Stream) -> None:
    """Refuse combinations of settings that are impossible with this data."""
    sizes = [len(source) for source in stream.arrivals]
    if min(sizes) < settings.batch_size:
        where = f"the {counted(min(sizes), 'image')} of step {sizes.index(min(sizes)) + 1}"
        raise UserError(
            f"batch_size {settings.batch_size} exceeds {where}; "
            f"nearest valid value: {fitting(min(sizes), settings.encoder.batch_norm_groups)}"
        )
    selection = build_selection(settings)
    budget = selection.budget if selection else None
    if budget is not None and budget.unit == "images" and budget.limit < len(sizes):
        raise UserError(
            f"memory.budget {budget.limit} can't hold an image of each of {len(sizes)} steps; "
            f"nearest valid value: {len(sizes)}"
        )
    for number, (source, clusters) in enumerate(zip(stream.arrivals, stream.num_clusters, strict=True), start=1):
        if selection is None or not selection.asks_clusters or clusters is None:
            continue
        if clusters == 0:
            raise UserError(
                f"step {number} has no labels to count classes by; set memory.clusters to a number or estimate"
            )
        if clusters > len(source):
            raise UserError(
                f"memory.clusters {clusters} exceeds the {counted(len(source), 'image')} of step {number}; "
                f"nearest valid value: {len(source)}"
            )


def build_viewer(settings: Settings, device: torch.device) -> Viewer:
    """The viewer of training and selection, and of plain images in the probe."""
    return Viewer(settings.views.to_recipe(), settings.seed, device, settings.data.workers)


def build_encoder(settings: Settings, device: torch.device, start: Mapping[str, Tensor] | None = None) -> Encoder:
    """The student, freshly initialised from the seed, but for the weights that it starts from."""
    encoder = make_encoder(settings.encoder, size=settings.views.to_recipe().size, start=start, seed=settings.seed)
    dtype = choose(settings.precision, device)
    encoder.compute_in(dtype, uses_channels_last(settings, device, dtype))
    return encoder.to(device)


def build_learner(settings: Settings, device: torch.device, start: Mapping[str, Tensor] | None = None) -> Learner:
    """Encoder, objective and the strategy's parts, freshly initialised from the seed; `start` is for the encoder."""
    encoder = build_encoder(settings, device, start)
    if foreign_kind(settings.encoder.backbone):
        refuse_random(encoder.backbone, settings.encoder.backbone, settings.views.to_recipe().size)
    method = settings.method
    retention = {part_name(name): _build("retention", name, settings, encoder) for name in method.retention}
    rules = [method.weight_rule] if method.weight_rule else []
    parts = retention | {part_name(name): _build("weight_rule", name, settings, encoder) for name in rules}
    objective = _build("objective", settings.objective, settings, encoder)
    weights = settings.weights.model_dump() if retention else {CONTRAST: 1.0}
    learner = Learner(encoder, objective, parts, weights, build_composition(settings), has_start(settings)).to(device)
    if settings.encoder.statistics == "accumulated":
        learner.statistics = AccumulatedStatistics(encoder)
    if encoder.dtype is torch.float16:
        learner.scaler = LossScaler(device.type)
    if settings.performance.compile:
        for module in learner.modules():
            if isinstance(module, Encoder):  # the student and its copies, each with its own mode
                module.compile()
    return learner


def has_start(settings: Settings) -> bool:
    """Whether the encoder knows something before the first step."""
    return settings.encoder.weights is not None


def uses_channels_last(settings: Settings, device: torch.device, dtype: torch.dtype) -> bool:
    asked = settings.performance.channels_last
    if asked != "auto":
        return asked
    # A CPU's convolutions and tensor cores read channels last (docs/performance.md); split batch norm lays groups side
    # by side as channels, and would copy every time. Never by timing, so that bits are a function of the settings.
    is_faster = device.type == "cpu" or (device.type == "cuda" and dtype is not torch.float32)
    return is_faster and settings.encoder.batch_norm_groups == 1 and not settings.is_too_narrow_for_channels_last


def build_composition(settings: Settings) -> Composition:
    """The composition asked for, or the strategy's own."""
    return cast(Composition, _build("composition", settings.method.composition, settings))


def _build(setting: str, part: str, settings: Settings, encoder: Encoder | None = None) -> Any:
    """A part: it gets by parameter names what it asks for of its options and of the rest."""
    name, objective = part_name(part), row_of("objective", settings.objective)
    offered: dict[str, Any] = {
        "options": getattr(settings, name, None),
        "temperature": settings.temperature,
        "seed": settings.seed,
        "has_start": has_start(settings),
        "objective_distance": objective.distance,
    }
    if objective.distance_weight:
        own = getattr(settings, part_name(settings.objective))
        offered["objective_weight"] = getattr(own, objective.distance_weight)
    offered |= {} if encoder is None else {"encoder": encoder, "dim": encoder.dim}
    with seeded(settings.seed, "part", name):  # where it owns weights
        made = row_of(setting, part).make(offered)
    if not isinstance(made, torch.nn.Module):
        return made
    return split_batch_norm(made, settings.encoder.num_groups, settings.encoder.is_synchronised)


def build_plan(settings: Settings) -> Plan:
    """Epochs, batches and the optimizer."""
    return Plan(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        batch_multiple=math.lcm(settings.encoder.batch_norm_groups, ranks.size()),
        seed=settings.seed,
        statistics=settings.encoder.statistics,
    )


def build_selection(settings: Settings) -> Selection | None:
    """The selection of each step; None where the strategy keeps nothing."""
    method = settings.method.selection
    return None if method is None else Selection(method, settings.memory, seed=settings.seed)


def build_device(settings: Settings) -> torch.device:
    """The device asked for, or the best there is, each process its own; sets the number of threads too."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    name, is_alone = settings.device, not ranks.is_launched()
    if name == "auto":
        has_mps = is_alone and torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if not is_alone and name not in ("cpu", "cuda"):
        raise UserError(f"device {name} is one device for several processes; set device=cuda, cpu or auto")
    if not is_alone and name == "cuda":
        name = f"cuda:{ranks.local_rank()}"
    kind, _, number = name.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name} is not there: torch sees {torch.cuda.device_count()} CUDA devices; try device=cpu"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps is not there; try device=cpu")
    if kind == "cuda" and not is_alone:
        torch.cuda.set_device(int(number))  # where messages between processes live
    device = torch.device(name)
    choose(settings.precision, device)  # refused here, before any data is read
    return device


def refuse_ranks(settings: Settings) -> None:
    """Each process must have whole batch-norm groups, or all of them one; batches must divide too."""
    groups, count = settings.encoder.batch_norm_groups, ranks.size()
    nearest = -(-groups // count) * count
    if groups % count and groups != 1:
        raise UserError(
            f"encoder.batch_norm_groups {groups} can't be spread over {count} processes; "
            f"set it to {nearest} or another multiple of {count}, or to 1 for all processes together"
        )
    if not settings.encoder.is_synchronised:
        return
    norms = [name for name in settings.method.retention if row_of("retention", name).has_norms]
    what = f"the batch norms of {norms[0]}" if norms else "performance.compile" if settings.performance.compile else ""
    if what:
        raise UserError(
            f"encoder.batch_norm_groups 1 over {count} processes is not possible with {what}; set it to {nearest}"
        )
    if settings.batch_size % count:
        raise UserError(
            f"batch_size {settings.batch_size} can't be spread over {count} processes; "
            f"nearest valid value: {fitting(settings.batch_size, count)}"
        )


def fitting(num_images: int, groups: int) -> int:
    """The largest multiple of the groups in so many images, but one at least."""
    return max(num_images // groups * groups, groups)
