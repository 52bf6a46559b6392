"""The forecast of a run: time from ten updates on noise, memory from tensors on the meta device."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ccl.catalogue import EMBEDDINGS, VIEWS, foreign_kind, row_of
from ccl.data import ArraySource
from ccl.errors import UserError
from ccl.reading import build_device, build_viewer
from ccl.runs.build import build_composition, build_learner, build_plan, build_selection
from ccl.runs.stream_builder import build_stream, cut
from ccl.settings import Settings
from ccl.strategies import RANDOM
from ccl.training import Loop, MemoryOptions, Observer, Progress, Selection, remember

# Of sets too large to be counted for a forecast: classes, and training images of a class.
_KNOWN = {
    "cifar10": (10, 5000.0),
    "cifar100": (100, 500.0),
    "imagenet-sub": (100, 1281.167),
    "imagenet-full": (1000, 1281.167),
}
_NUM_UPDATES = 10  # that are timed, or as many as there is patience for
_LARGE = 64  # pixels from which timed batches are smaller


@dataclass(frozen=True)
class Work:
    """The amount of work in the training of a run."""

    num_images: int  # passed through training; an image counts once per epoch
    num_updates: int
    share_old: float  # of these images, on average
    num_forward: int = 0  # images passed through the network by selections, once for each view

    @property
    def cost(self) -> float:
        """In images that are learned: of one, a query goes forwards and backwards, and a key forwards."""
        return self.num_images + self.num_forward / 4


def step_sizes(settings: Settings) -> tuple[list[int], list[int]]:
    """Images and classes of each step: by the dataset's name where known, else by loading it."""
    (name, *others), data = settings.dataset, settings.data
    is_known = not others and name in _KNOWN and (data.classes is None or isinstance(data.classes, int))
    if is_known and settings.stream_kind != "domain":
        all_classes, per_class = _KNOWN[name]
        num_classes = data.classes if isinstance(data.classes, int) else all_classes
        num_images = round(num_classes * min(per_class, data.images_per_class or math.inf))
        labels = torch.arange(num_images) * num_classes // num_images  # (N,) of classes of equal size
        steps = cut(settings, torch.arange(num_images), labels)
    else:
        steps = build_stream(settings).steps
    return [len(step.indices) for step in steps], [len(step.classes) for step in steps]


def work_of(settings: Settings) -> Work:
    """The work of a whole stream."""
    sizes, num_classes = step_sizes(settings)
    if settings.method.all_at_once:
        sizes, num_classes = [sum(sizes)], [sum(num_classes)]
    return work(settings, sizes, num_remembered(settings, sizes, num_classes))


def work(settings: Settings, sizes: Sequence[int], remembered: Sequence[int]) -> Work:
    """The work of steps of these sizes, with so many remembered images."""
    num_updates = num_images = num_old = 0
    selection, num_passes = build_selection(settings), 0
    if selection is not None:
        needs = row_of("memory.selection", selection.method).needs
        num_passes = int(EMBEDDINGS in needs) + selection.options.num_views * int(VIEWS in needs)
    composition, groups = build_composition(settings), settings.encoder.batch_norm_groups
    for size, kept in zip(sizes, remembered, strict=True):
        batches = composition.batches(torch.arange(size + kept), size, settings.batch_size, groups, 0, 0, 0)
        num_updates += settings.epochs * len(batches)
        num_images += settings.epochs * sum(len(batch.positions) for batch in batches)
        num_old += settings.epochs * sum(int((batch.positions >= size).sum()) for batch in batches)
    return Work(num_images, num_updates, num_old / num_images, sum(sizes) * num_passes)


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


def seconds_here(
    settings: Settings, share_old: float = 0.0, now: Callable[[], float] = time.perf_counter, patience: float = 2.0
) -> float:
    """To learn an image once: measured on the settings' device in a second step on noise, with views, no decoding."""
    recipe, groups, device = settings.views.to_recipe(), settings.encoder.batch_norm_groups, build_device(settings)
    batch_size = groups * max(1, min(settings.batch_size, 64 if recipe.size <= _LARGE else 16) // groups)
    settings = settings.model_copy(update={"epochs": 1000, "batch_size": batch_size})
    learner, viewer, num_images = build_learner(settings, device), build_viewer(settings, device), 4 * batch_size
    size = settings.data.resize or recipe.size
    source = ArraySource(torch.randint(256, (num_images, 3, size, size), dtype=torch.uint8))
    num_new = max(1, num_images - round(share_old * num_images))
    learner.begin_step(0, source.ids, num_images)
    if num_new < num_images:
        old = source.subset(torch.arange(num_new, num_images))
        remember(learner, old, viewer, 0, None, Selection(RANDOM, MemoryOptions(budget=len(old))))
    stopwatch = _Stopwatch(now, patience)
    new, plan = source.subset(torch.arange(num_new)), build_plan(settings)
    with suppress(TimeoutError):
        Loop(learner, viewer, plan, Progress(1), observer=stopwatch).learn_step(new, None, num_images)
    return stopwatch.spent / stopwatch.num_images


class _Stopwatch(Observer):
    """Ends a step after ten updates and one to warm up, or when time is up."""

    def __init__(self, now: Callable[[], float], patience: float) -> None:
        self._now, self._patience = now, patience
        self._started: float | None = None
        self.num_images = self._num_updates = 0
        self.spent = 0.0

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        if self._started is None:
            self._started = self._now()
            return
        self.num_images, self._num_updates = self.num_images + num_images, self._num_updates + 1
        self.spent = self._now() - self._started
        if self.spent >= self._patience or self._num_updates == _NUM_UPDATES:
            raise TimeoutError


def learner_bytes(settings: Settings) -> dict[str, float]:
    """Bytes of a learner's tensors by name, with "gradients" and "momentum"; none is allocated.

    Images, activations and what grows with the stream come on top.
    """
    meta = torch.device("meta")
    with meta:
        # Weights are stored in float32, whatever is computed with.
        learner = build_learner(settings.model_copy(update={"precision": "float32"}), meta)
    found = {name.removeprefix("registered_parts."): float(t.nbytes) for name, t in learner.state_dict().items()}
    gradients = float(sum(parameter.nbytes for parameter in learner.trained_parameters().values()))
    moments = 2 if settings.optimizer.name == "adamw" else 1
    return found | {"gradients": gradients, "momentum": moments * gradients}


def refuse_too_large(settings: Settings, device: torch.device) -> None:
    """Refuse a learner that the device can't hold, and name its largest tensors."""
    try:
        found = learner_bytes(settings)
    except UserError:
        raise
    except Exception:
        if foreign_kind(settings.encoder.backbone):  # it may not know tensors without values: it is let pass
            return
        raise UserError("the learner is larger than any memory; set smaller sizes") from None
    limit = device_memory(device)
    if not limit or sum(found.values()) <= limit:
        return
    tensors = [name for name in found if name not in ("gradients", "momentum")]
    tensors.sort(key=found.__getitem__, reverse=True)
    named = ", ".join(f"{name} {size(found[name])}" for name in tensors[:3])
    where = f"device {device}" if device.type == "cuda" else "this machine"
    raise UserError(
        f"the learner needs {size(sum(found.values()))} of memory, and {where} has {size(limit)}; "
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
    """A duration in words, such as "3 minutes"."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def size(num_bytes: float) -> str:
    """A number of bytes in words, such as "1.2 GB"."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
