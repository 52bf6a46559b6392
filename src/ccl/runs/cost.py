"""What a run will cost, before it begins: passes, operations, memory, disk, network (docs/scaling.md)."""

import copy
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from ccl.catalogue import EMBEDDINGS, SELECTIONS, VIEWS, foreign_kind
from ccl.encoders import Encoder
from ccl.evaluation.paper_probe import PAPER_EPOCHS
from ccl.runs.build import (
    build_composition,
    build_learner,
    build_plan,
    build_recipe,
    build_selection,
    build_stream,
)
from ccl.runs.stream_builder import cut
from ccl.settings import Settings
from ccl.training import Learner, Progress, update
from ccl.views import ViewBatch

# Of sets too large to be counted for an estimate: images of a class to learn from and to test on, and classes.
_IMAGES_PER_CLASS = {"cifar10": 5000.0, "cifar100": 500.0, "imagenet-sub": 1281.167, "imagenet-full": 1281.167}
_TEST_IMAGES_PER_CLASS = {"cifar10": 1000, "cifar100": 100, "imagenet-sub": 50, "imagenet-full": 50}
_NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-sub": 100, "imagenet-full": 1000}
_FLOAT = 4  # bytes
_NUM_COUNTED, _COUNTED_SIZE = 4, 64  # images of the updates that are counted (shares by quarters), their largest side


@dataclass(frozen=True)
class Cost:
    """Of one run, from counting the operations of real updates; no clock is read."""

    num_images: int  # passed through training; an image counts once per epoch
    num_updates: int
    operations: float  # of training: multiplications and additions of the networks
    operations_per_image: float  # of an image of the present, in training
    forward_operations: float  # of one image through the encoder
    num_read: int  # images read by the frozen encoder, in selections, probes and estimates of statistics
    parameters: int  # of the encoder
    network_bytes: int  # student, copies, gradients, momentum, queues
    activation_bytes: int  # of one batch in training
    checkpoint_bytes: int
    message_bytes: int  # gradients and keys that a rank sends in each update; MoCo's second views come on top

    @property
    def passes(self) -> float:
        """All work in units of one image of the present in training: what a measured rate is multiplied with."""
        reading = self.num_read * self.forward_operations / self.operations_per_image
        return self.operations / self.operations_per_image + reading


def step_sizes(settings: Settings) -> tuple[list[int], list[int], int]:
    """Images and classes of each step, and all test images: by the dataset's name where known, else by loading it."""
    labels = _known_labels(settings)
    if labels is None:
        stream = build_stream(settings)
        steps, num_tested = stream.steps, sum(len(part.test) for part in stream.probe_parts)
    else:
        steps = cut(settings, torch.arange(len(labels)), labels)
        num_tested = (int(labels.max()) + 1) * _TEST_IMAGES_PER_CLASS[settings.dataset[0]]
    return [len(step.indices) for step in steps], [len(step.classes) for step in steps], num_tested


def _known_labels(settings: Settings) -> Tensor | None:
    """Labels (N,) as the dataset has them, in classes of equal size; None where its name is not enough."""
    (name, *others), data = settings.dataset, settings.data
    if others or name not in _NUM_CLASSES or not (data.classes is None or isinstance(data.classes, int)):
        return None
    if settings.stream_kind == "domain":
        return None
    num_classes = data.classes or _NUM_CLASSES[name]
    num_images = round(num_classes * min(_IMAGES_PER_CLASS[name], data.images_per_class or math.inf))
    return torch.arange(num_images) * num_classes // num_images  # (N,)


def estimate(settings: Settings, step_sizes: Sequence[int], num_classes: Sequence[int], num_tested: int) -> Cost:
    """The cost of learning steps of so many images and classes; some images of each cluster are kept for later.

    Without test images (`num_tested` 0) nothing is probed.
    """
    sizes = [sum(step_sizes)] if settings.method.all_at_once else list(step_sizes)
    in_memory = _in_memory(settings, sizes, num_classes)
    counted = _count(_learning_alike(settings))
    num_updates, new, old = 0, 0, 0
    for size, kept in zip(sizes, in_memory, strict=False):
        of_epoch = _an_epoch(_learning_alike(settings), size, kept, settings.batch_size)
        num_updates, new, old = (
            total + settings.epochs * count for total, count in zip((num_updates, new, old), of_epoch, strict=True)
        )
    state_bytes = counted.state_bytes + counted.bytes_per_image * (max(sizes) + in_memory[-1])
    return Cost(
        num_images=new + old,
        num_updates=num_updates,
        operations=new * counted.of_new + old * counted.of_old,
        operations_per_image=counted.of_new,
        forward_operations=counted.forward,
        num_read=_num_read(settings, sum(step_sizes), num_tested, len(sizes))
        + _num_read_for_statistics(settings, sizes, in_memory, counted.num_norms),
        parameters=counted.parameters,
        network_bytes=state_bytes + counted.trained_bytes + counted.optimizer_bytes,
        activation_bytes=counted.activation_bytes * settings.batch_size,
        checkpoint_bytes=state_bytes + counted.optimizer_bytes,
        message_bytes=counted.trained_bytes + _FLOAT * settings.batch_size * settings.encoder.dim,
    )


@dataclass(frozen=True)
class _Counted:
    """What real updates of this learner take."""

    of_new: float  # operations for an image of the present, from the second step on
    of_old: float
    forward: float  # of one image through the encoder
    parameters: int  # of the encoder
    state_bytes: int  # of everything that a checkpoint keeps of the learner
    bytes_per_image: int  # and for each image of the step and the memory, as InsDisc's bank has
    trained_bytes: int  # of all parameters that learn, and so of their gradients
    optimizer_bytes: int
    activation_bytes: int  # of one image in training
    num_norms: int  # batch norms of the encoder


@functools.lru_cache(maxsize=256)
def _an_epoch(values: str, num_new: int, num_old: int, batch_size: int) -> tuple[int, int, int]:
    """Updates, new images and old images of one epoch."""
    composition = build_composition(Settings.model_validate_json(values))
    batches = composition.batches(torch.arange(num_new + num_old), num_new, batch_size, 1, 0, 0, 0)
    num_images = sum(len(batch.positions) for batch in batches)
    shown = sum(int((batch.positions < num_new).sum()) for batch in batches)
    if composition.is_mixed and num_old:
        return len(batches), shown, 0  # an old image is learned in the row of its new one
    return len(batches), shown, num_images - shown


def _learning_alike(settings: Settings) -> str:
    """What decides how an image is learned; what doesn't is the same for all."""
    alike = {"seed": 0, "epochs": 2, "batch_size": _NUM_COUNTED, "threads": None, "device": "cpu", "steps": None}
    values = settings.model_dump(mode="json", exclude={"data", "probe", "checkpoint", "trackers", "dataset", "memory"})
    values["encoder"]["batch_norm_groups"] = 1
    values["optimizer"]["warmup_epochs"] = 0
    return json.dumps(values | alike | {"precision": "float32", "performance": {}})


@functools.lru_cache(maxsize=64)
def _count(values: str) -> _Counted:
    settings, device = Settings.model_validate_json(values), torch.device("cpu")
    learner, plan, size = build_learner(settings, device), build_plan(settings), build_recipe(settings).size
    optimizer = plan.make_optimizer(learner)
    learner.begin_step(0, torch.arange(0), num_new=0)
    state_bytes = _bytes_of(learner.state_dict())
    forward, activations = _one_forward(learner.encoder, size)
    # A network of others may read no other size.
    small = size if foreign_kind(settings.encoder.backbone) else min(size, _COUNTED_SIZE)
    times = []  # forward passes that an image's update is worth: new, old
    for is_old in (False, True):
        learner.begin_step(1, torch.arange(_NUM_COUNTED), num_new=0 if is_old else _NUM_COUNTED)
        with FlopCounterMode(display=False) as counter:
            update(learner, _any_batch(learner, small), optimizer, (1, 0))
        times.append(counter.get_total_flops() / _NUM_COUNTED / _one_forward(learner.encoder, small)[0])
    bytes_per_image = (_bytes_of(learner.state_dict()) - state_bytes) // _NUM_COUNTED
    state = Progress(optimizer=optimizer).state_dict()
    return _Counted(
        of_new=times[0] * forward,
        of_old=times[1] * forward,
        forward=forward,
        parameters=sum(parameter.numel() for parameter in learner.encoder.parameters()),
        state_bytes=state_bytes,
        trained_bytes=_bytes_of(learner.trained_parameters()),
        optimizer_bytes=_bytes_of(state),
        activation_bytes=activations * max(learner.num_student_views + learner.num_further_views, 1),
        bytes_per_image=bytes_per_image,
        num_norms=sum(isinstance(part, _BatchNorm) for part in learner.encoder.modules()),
    )


def _any_batch(learner: Learner, size: int) -> ViewBatch:
    """Noise to count with; the numbers don't matter."""
    noise = torch.Generator().manual_seed(0)
    views = [torch.randn(_NUM_COUNTED, 3, size, size, generator=noise) for _ in range(learner.num_views)]
    numbers, wanted = torch.arange(_NUM_COUNTED), learner.wants_plain(_NUM_COUNTED)
    plain = views[0][wanted] if wanted is not None else views[0][:0]
    has_further = learner.has_further(numbers)
    further = (views[0][has_further],) * learner.num_further_views
    return ViewBatch(numbers, numbers, tuple(views), plain, further=further, has_further=has_further)


def _bytes_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _in_memory(settings: Settings, sizes: Sequence[int], num_classes: Sequence[int]) -> list[int]:
    """Images kept before each step and after the last; clusters yet to be counted are taken to be the classes."""
    selection, clusters = build_selection(settings), settings.memory.clusters
    if selection is None:
        return [0] * (len(sizes) + 1)
    budget, most, kept = selection.budget, sum(sizes), [0]
    if budget is not None:
        most = budget.limit // (1 if budget.unit == "images" else _bytes_of_pixels(settings))
    for size, count in zip(sizes, num_classes, strict=False):
        of_clusters = selection.per_cluster * (clusters if isinstance(clusters, int) else count)
        kept.append(min(kept[-1] + min(of_clusters if budget is None else size, size), most))
    return kept


def _bytes_of_pixels(settings: Settings) -> int:
    """A guess at an image's file: small PNGs are about as large as their pixels; photographs as JPEG a tenth."""
    return 3 * (settings.data.resize or build_recipe(settings).size) ** 2


def _num_read(settings: Settings, num_images: int, num_tested: int, num_arrivals: int) -> int:
    probes = {"each": num_arrivals + 1, "last": 2, "never": 0}[settings.probe.after] if num_tested else 0
    read = probes * (num_images + num_tested)
    # The paper's probe reads all images anew in each of its epochs; of a matrix each row has two, of steps and of all.
    by_paper = 2 * probes if settings.probe.matrix == "paper" else 0
    by_paper += 1 if settings.probe.adds_paper_accuracy and num_tested else 0
    read += by_paper * PAPER_EPOCHS * num_images
    selection = build_selection(settings)
    if selection is not None and (selection.budget is not None or selection.per_cluster > 0):
        needs = SELECTIONS[selection.method].needs
        is_counted = settings.memory.clusters == "estimate" and selection.asks_clusters
        read += num_images * (is_counted or EMBEDDINGS in needs)
        read += num_images * (selection.num_views if VIEWS in needs else 0)
    return read


def _num_read_for_statistics(settings: Settings, sizes: Sequence[int], in_memory: Sequence[int], num_norms: int) -> int:
    """Images that pass the encoder to estimate its statistics anew: once for each layer, on average half-way."""
    read = 0
    if settings.method.weight_rule:
        read += sum(sizes) + sum(in_memory[: len(sizes)])
    if settings.encoder.statistics == "remembered":
        read += sum(kept or size for size, kept in zip(sizes, in_memory[1:], strict=True))
    if settings.encoder.statistics == "accumulated":
        read += sum(sizes)
    return read * num_norms // 2


def _one_forward(encoder: Encoder, size: int) -> tuple[float, int]:
    """Of one image through the encoder: operations, and bytes that it leaves behind for the backward pass.

    These are the outputs of all layers that are not in place. Shapes alone: nothing is computed.
    """
    paper, found = copy.deepcopy(encoder).to("meta").eval(), 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal found
        found += _FLOAT * output.numel()

    for part in paper.modules():
        if not list(part.children()) and not getattr(part, "inplace", False):
            part.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        paper(torch.empty(1, 3, size, size, device="meta"))
    return float(counter.get_total_flops()), found
