"""What a run will cost, before it begins: passes, operations, memory, disk, network (docs/scaling.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ccl.encoders import Encoder, make_encoder
from ccl.evaluation import NUM_HEALTH_IMAGES
from ccl.runs.build import build_recipe, build_selection, build_stream
from ccl.runs.stream_builder import cut
from ccl.settings import Settings
from ccl.strategies import DISTILLATION, EXTRA_SAMPLE_QUEUE, STRATEGIES, VIEW_VARIANCE

# Of sets too large to be counted for an estimate: images of a class to learn from and to test on, and classes.
_IMAGES_PER_CLASS = {"cifar10": 5000.0, "cifar100": 500.0, "imagenet-sub": 1281.167, "imagenet-full": 1281.167}
_TEST_IMAGES_PER_CLASS = {"cifar10": 1000, "cifar100": 100, "imagenet-sub": 50, "imagenet-full": 50}
_NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-sub": 100, "imagenet-full": 1000}
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """Of one run, by counting alone: no machine is asked."""

    num_images: int  # passed through training; an image counts once per epoch
    num_updates: int
    operations: float  # of training: multiplications and additions of the networks
    operations_per_image: float  # of an image of the present, in training
    forward_operations: float  # of one image through the encoder
    num_read: int  # images read by the frozen encoder, in selections and probes
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
    """Images and classes of each step, and all test images: by the dataset's name if that tells, else by loading it."""
    labels = _known_labels(settings)
    if labels is None:
        stream = build_stream(settings)
        steps, num_tested = stream.steps, sum(len(part.test) for part in stream.probe_parts)
    else:
        steps = cut(settings, torch.arange(len(labels)), labels)
        num_tested = (int(labels.max()) + 1) * _TEST_IMAGES_PER_CLASS[settings.dataset[0]]
    return [len(step.indices) for step in steps], [len(step.classes) for step in steps], num_tested


def _known_labels(settings: Settings) -> Tensor | None:
    """Labels (N,) as the dataset has them, in classes of equal size; None where its name alone doesn't tell."""
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
    strategy = STRATEGIES[settings.strategy]
    sizes = [sum(step_sizes)] if strategy.all_at_once else list(step_sizes)
    in_memory = _in_memory(settings, sizes, num_classes)
    encoder, forward = _on_paper(settings), forward_operations(settings)
    of_present = forward * _forwards(settings.objective)
    has_teacher = DISTILLATION in strategy.retention and settings.weights.distillation > 0
    num_images, num_updates, operations = 0, 0, 0.0
    for size, kept in zip(sizes, in_memory, strict=False):
        num_images += settings.epochs * (size + kept)
        num_updates += settings.epochs * math.ceil((size + kept) / settings.batch_size)
        operations += settings.epochs * (size + kept) * of_present
        if has_teacher:  # an old image: the plain one through the student, both through the teacher
            operations += settings.epochs * kept * forward * (3 + 2)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    copies = 1 + (settings.objective == "moco_v2") + has_teacher
    queued = settings.moco_v2.queue_size if settings.objective == "moco_v2" else 0
    queued += settings.extra_sample_queue.size if EXTRA_SAMPLE_QUEUE in strategy.retention else 0
    queued += max(sizes) + in_memory[-1] if settings.objective == "insdisc" else 0
    kept_bytes = _FLOAT * (parameters * copies + queued * settings.encoder.dim)
    return Cost(
        num_images=num_images,
        num_updates=num_updates,
        operations=operations,
        operations_per_image=of_present,
        forward_operations=forward,
        num_read=_num_read(settings, sum(step_sizes), num_tested, len(sizes)),
        parameters=parameters,
        network_bytes=kept_bytes + _FLOAT * parameters * 2,
        activation_bytes=_activations(settings, encoder) * settings.batch_size * _student_views(settings.objective),
        checkpoint_bytes=kept_bytes + _FLOAT * parameters,
        message_bytes=_FLOAT * (parameters + settings.batch_size * settings.encoder.dim),
    )


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
    read = probes * (num_images + num_tested + min(num_tested, NUM_HEALTH_IMAGES))
    selection = build_selection(settings)
    if selection is not None and selection.asks_clusters:
        read += num_images * (settings.memory.clusters == "estimate" or selection.method == VIEW_VARIANCE)
        read += num_images * (selection.num_views if selection.method == VIEW_VARIANCE else 0)
    return read


def _forwards(objective: str) -> int:
    """Forward passes of an image in one update; a backward pass costs as much as two."""
    return 3 * _student_views(objective) + (objective == "moco_v2")


def _student_views(objective: str) -> int:
    return 2 if objective == "simclr" else 1


def _on_paper(settings: Settings) -> Encoder:
    """The encoder without content: shapes only."""
    options = settings.encoder
    with torch.device("meta"):
        return make_encoder(
            options.backbone, stem=options.stem, width=options.width, dim=options.dim, head=options.head
        ).eval()


def forward_operations(settings: Settings) -> float:
    """Operations of one image through the encoder."""
    encoder, size = _on_paper(settings), build_recipe(settings).size
    with FlopCounterMode(display=False) as counter:
        encoder(torch.empty(1, 3, size, size, device="meta"))
    return float(counter.get_total_flops())


def _activations(settings: Settings, encoder: Encoder) -> int:
    """Bytes of what one image leaves behind for the backward pass: the outputs of all layers that are not in place."""
    found = 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal found
        found += _FLOAT * output.numel()

    layers = [part for part in encoder.modules() if not list(part.children()) and not getattr(part, "inplace", False)]
    hooks = [part.register_forward_hook(count) for part in layers]
    size = build_recipe(settings).size
    encoder(torch.empty(1, 3, size, size, device="meta"))
    for hook in hooks:
        hook.remove()
    return found
