"""What a run will take, before it begins: time from ten updates on noise, memory from tensors without values."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ccl.catalogue import EMBEDDINGS, VIEWS, foreign_kind, row_of
from ccl.data import ArraySource
from ccl.encoders import extract
from ccl.errors import UserError
from ccl.evaluation.paper_probe import PAPER_EPOCHS
from ccl.loading import validated
from ccl.runs.build import (
    build_composition,
    build_device,
    build_learner,
    build_plan,
    build_selection,
    build_stream,
    build_viewer,
)
from ccl.runs.stream_builder import cut
from ccl.section import merged
from ccl.settings import Settings
from ccl.strategies import RANDOM
from ccl.training import Loop, MemoryOptions, Observer, Progress, Selection, remember

# Operations a second that one recent data-centre GPU sustains on such convolutions in half precision; not measured.
ASSUMED_GPU_RATE = 20e12
ASSUMED = f"one GPU that sustains {ASSUMED_GPU_RATE / 1e12:.0f} TFLOP/s (assumed, not measured)"

# Of sets too large to be counted for a forecast: classes, and images of a class to learn from and to test on.
_KNOWN = {
    "cifar10": (10, 5000.0, 1000),
    "cifar100": (100, 500.0, 100),
    "imagenet-sub": (100, 1281.167, 50),
    "imagenet-full": (1000, 1281.167, 50),
}
_NUM_UPDATES, _PATIENCE = 10, 2.0  # that are timed, or as many as so many seconds hold
_LARGE = 64  # pixels from which timed batches are smaller; operations are counted at no more
_NUM_COUNTED = 32  # images of the update whose operations are counted


@dataclass(frozen=True)
class Work:
    """How much a run has to do."""

    num_images: int  # passed through training; an image counts once per epoch
    num_updates: int
    share_old: float  # of these images, on average
    num_read: int  # images read by the encoder at rest, in probes and selections

    def times(self, price: "Price") -> float:
        return self.num_images * price.learned + self.num_read * price.read


@dataclass(frozen=True)
class Price:
    """Of an image: to learn it once, and to read it, in seconds or in operations."""

    learned: float
    read: float
    held: float = 0.0  # bytes that learning it leaves for the backward pass, where operations are counted


def step_sizes(settings: Settings) -> tuple[list[int], list[int], int]:
    """Images and classes of each step, and all test images: by the dataset's name where known, else by loading it."""
    (name, *others), data = settings.dataset, settings.data
    is_known = not others and name in _KNOWN and (data.classes is None or isinstance(data.classes, int))
    if is_known and settings.stream_kind != "domain":
        all_classes, to_learn, to_test = _KNOWN[name]
        num_classes = data.classes if isinstance(data.classes, int) else all_classes
        num_images = round(num_classes * min(to_learn, data.images_per_class or math.inf))
        labels = torch.arange(num_images) * num_classes // num_images  # (N,) of classes of equal size
        steps, num_tested = cut(settings, torch.arange(num_images), labels), num_classes * to_test
    else:
        stream = build_stream(settings)
        steps, num_tested = stream.steps, sum(len(part.test) for part in stream.probe_parts)
    return [len(step.indices) for step in steps], [len(step.classes) for step in steps], num_tested


def work_of(settings: Settings) -> Work:
    """Of the whole stream."""
    sizes, num_classes, num_tested = step_sizes(settings)
    if settings.method.all_at_once:
        sizes, num_classes = [sum(sizes)], [sum(num_classes)]
    return work(settings, sizes, num_remembered(settings, sizes, num_classes), num_tested)


def work(settings: Settings, sizes: Sequence[int], remembered: Sequence[int], num_tested: int) -> Work:
    """Of steps of so many images, with so many remembered beside them; without test images nothing is probed."""
    num_updates = num_images = num_old = 0
    composition, groups = build_composition(settings), settings.encoder.batch_norm_groups
    for size, kept in zip(sizes, remembered, strict=True):
        batches = composition.batches(torch.arange(size + kept), size, settings.batch_size, groups, 0, 0, 0)
        num_updates += settings.epochs * len(batches)
        num_images += settings.epochs * sum(len(batch.positions) for batch in batches)
        num_old += settings.epochs * sum(int((batch.positions >= size).sum()) for batch in batches)
    return Work(num_images, num_updates, num_old / num_images, _num_read(settings, sum(sizes), num_tested, len(sizes)))


def num_remembered(settings: Settings, sizes: Sequence[int], num_classes: Sequence[int]) -> list[int]:
    """Images remembered before each step; clusters yet to be counted are taken to be the classes."""
    selection, clusters = build_selection(settings), settings.memory.clusters
    if selection is None:
        return [0] * len(sizes)
    budget, most, kept = selection.budget, sum(sizes), [0]
    if budget is not None:
        # Small PNGs are about as large as their pixels; photographs as JPEG a tenth.
        pixels = 3 * (settings.data.resize or settings.views.to_recipe().size) ** 2
        most = budget.limit // (1 if budget.unit == "images" else pixels)
    for size, count in zip(sizes[:-1], num_classes[:-1], strict=True):
        of_clusters = selection.options.per_cluster * (clusters if isinstance(clusters, int) else count)
        kept.append(min(kept[-1] + min(of_clusters if budget is None else size, size), most))
    return kept


def _num_read(settings: Settings, num_images: int, num_tested: int, num_arrivals: int) -> int:
    probes = {"each": num_arrivals + 1, "last": 2, "never": 0}[settings.probe.after] if num_tested else 0
    read = probes * (num_images + num_tested)
    # The paper's probe reads all images anew in each of its epochs; of a matrix each row has two, of steps and of all.
    by_paper = 2 * probes if settings.probe.matrix == "paper" else 0
    by_paper += 1 if settings.probe.adds_paper_accuracy and num_tested else 0
    read += by_paper * PAPER_EPOCHS * num_images
    selection = build_selection(settings)
    if selection is not None and (selection.budget is not None or selection.options.per_cluster > 0):
        needs = row_of("memory.selection", selection.method).needs
        is_counted = settings.memory.clusters == "estimate" and selection.asks_clusters
        read += num_images * (is_counted or EMBEDDINGS in needs)
        read += num_images * (selection.options.num_views if VIEWS in needs else 0)
    return read


def seconds_here(
    settings: Settings,
    share_old: float = 0.0,
    now: Callable[[], float] = time.perf_counter,
    patience: float = _PATIENCE,
) -> Price:
    """Measured on the settings' device, views included, decoding of files not; takes seconds."""
    groups = settings.encoder.batch_norm_groups
    num_images = min(settings.batch_size, 64 if settings.views.to_recipe().size <= _LARGE else 16)
    num_images = groups * max(1, num_images // groups)
    return _measured(settings, num_images, 4 * num_images, share_old, build_device(settings), now, patience)


def operations(settings: Settings, share_old: float = 0.0) -> Price:
    """Counted in one update on the CPU: multiplications and additions of the networks."""
    size = settings.views.to_recipe().size
    # A network of others may read no other size.
    small = size if foreign_kind(settings.encoder.backbone) else min(size, _LARGE)
    changed = {"precision": "float32", "performance": {"compile": False}, "views": {"size": small}}
    settings = validated(merged(settings.model_dump(), {**changed, "encoder": {"batch_norm_groups": 1}}))
    held: dict[int, int] = {}

    def hold(tensor: Tensor) -> Tensor:
        held[tensor.data_ptr()] = 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor

    cpu, num = torch.device("cpu"), _NUM_COUNTED
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(hold, lambda one: one):
        price = _measured(settings, num, num, share_old, cpu, lambda: float(counter.get_total_flops()), None)
    larger = (size / small) ** 2
    return Price(larger * price.learned, larger * price.read, larger * sum(held.values()) / num)


def _measured(
    settings: Settings,
    batch_size: int,
    num_images: int,
    share_old: float,
    device: torch.device,
    now: Callable[[], float],
    patience: float | None,
) -> Price:
    """A second step on noise, from its second update on; of the first update alone where there is no patience."""
    settings = settings.model_copy(update={"epochs": 1000, "batch_size": batch_size})
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    size = settings.data.resize or settings.views.to_recipe().size
    source = ArraySource(torch.randint(256, (num_images, 3, size, size), dtype=torch.uint8))
    started = now()
    extract(learner.encoder, source, viewer, batch_size)
    read = (now() - started) / num_images
    num_new = max(1, num_images - round(share_old * num_images))
    learner.begin_step(0, source.ids, num_images)
    if num_new < num_images:
        old = source.subset(torch.arange(num_new, num_images))
        remember(learner, old, viewer, 0, None, Selection(RANDOM, MemoryOptions(budget=len(old))))
    stopwatch = _Stopwatch(now, patience)
    new, plan = source.subset(torch.arange(num_new)), build_plan(settings)
    with suppress(TimeoutError):
        Loop(learner, viewer, plan, Progress(1), observer=stopwatch).learn_step(new, None, num_images)
    return Price(stopwatch.spent / stopwatch.num_images, read)


class _Stopwatch(Observer):
    """Ends a step after so many updates, or when time is up."""

    def __init__(self, now: Callable[[], float], patience: float | None) -> None:
        self._now, self._patience = now, patience
        self._is_warm = patience is None
        self.num_images = self._num_updates = 0
        self.spent = 0.0
        self._started = now()

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        if not self._is_warm:  # the first update warms everything up
            self._is_warm, self._started = True, self._now()
            return
        self.num_images, self._num_updates = self.num_images + num_images, self._num_updates + 1
        self.spent = self._now() - self._started
        if self._patience is None or self.spent >= self._patience or self._num_updates == _NUM_UPDATES:
            raise TimeoutError


@dataclass(frozen=True)
class LearnerSize:
    """Bytes of a learner's tensors; images, activations and what grows with the stream come on top."""

    tensors: Mapping[str, float]  # of a checkpoint, by name, without the optimizer's
    trained: float  # of what an optimizer moves, and so of its gradients
    moments: float  # of the optimizer

    @property
    def checkpoint(self) -> float:
        return sum(self.tensors.values()) + self.moments

    @property
    def total(self) -> float:
        return self.checkpoint + self.trained


def learner_size(settings: Settings) -> LearnerSize:
    """Of a learner with its copies and queues, made without memory."""
    meta = torch.device("meta")
    with meta:
        # Weights are stored in float32, whatever is computed with.
        learner = build_learner(settings.model_copy(update={"precision": "float32"}), meta)
    tensors = {name.removeprefix("registered_parts."): float(t.nbytes) for name, t in learner.state_dict().items()}
    trained = float(sum(parameter.nbytes for parameter in learner.trained_parameters().values()))
    return LearnerSize(tensors, trained, trained * (2 if settings.optimizer.name == "adamw" else 1))


def refuse_too_large(settings: Settings, device: torch.device) -> None:
    """Refuse a learner that the device can't hold, and name its largest tensors."""
    try:
        found = learner_size(settings)
    except UserError:
        raise
    except Exception:
        if foreign_kind(settings.encoder.backbone):  # it may not know tensors without values: it is let pass
            return
        raise UserError("the learner is larger than any memory; set smaller sizes") from None
    limit = device_memory(device)
    if not limit or found.total <= limit:
        return
    largest = sorted(found.tensors, key=lambda name: -found.tensors[name])[:3]
    named = ", ".join(f"{name} {size(found.tensors[name])}" for name in largest)
    where = f"device {device}" if device.type == "cuda" else "this machine"
    raise UserError(
        f"the learner needs {size(found.total)} of memory, and {where} has {size(limit)}; "
        f"set smaller sizes; its largest tensors: {named}"
    )


def device_memory(device: torch.device) -> int:
    """Bytes that a device has in all; 0 where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # Windows has no such call
        return 0


def clock(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def size(num_bytes: float) -> str:
    """A number of bytes as a person says it."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
