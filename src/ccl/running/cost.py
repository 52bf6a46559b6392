"""What a run will cost, before it begins: images to learn from, operations, and hours at a measured or assumed rate."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from ccl.encoders import make_encoder
from ccl.running.build import DEFAULT_STEPS, build_learner, build_recipe, build_stream
from ccl.settings import Settings
from ccl.strategies import DISTILLATION, STRATEGIES
from ccl.views import ViewBatch

ASSUMED_GPU_RATE = (
    20e12  # operations a second that one recent data-centre GPU sustains on such convolutions; not measured
)
# Of sets too large to be counted for an estimate: images of a class.
_IMAGES_PER_CLASS = {"cifar10": 5000.0, "cifar100": 500.0, "imagenet-sub": 1281.167, "imagenet-full": 1281.167}
_NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-sub": 100, "imagenet-full": 1000}


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    num_images: int  # passed through training, an image counts once per epoch
    operations: float  # of training: multiplications and additions of the networks


def step_sizes(settings: Settings) -> tuple[list[int], list[int]]:
    """Images and classes of each step: by the dataset's name where that tells them, else by loading the data."""
    known = _known_sizes(settings)
    if known is not None:
        return known
    stream = build_stream(settings)
    return [len(step.indices) for step in stream.steps], [len(step.classes) for step in stream.steps]


def _known_sizes(settings: Settings) -> tuple[list[int], list[int]] | None:
    (name, *others), data = settings.dataset, settings.data
    if others or name not in _NUM_CLASSES or not (data.classes is None or isinstance(data.classes, int)):
        return None
    num_steps, num_classes = settings.steps or DEFAULT_STEPS, data.classes or _NUM_CLASSES[name]
    per_class = min(_IMAGES_PER_CLASS[name], data.images_per_class or math.inf)
    return [round(num_classes * per_class / num_steps)] * num_steps, [round(num_classes / num_steps)] * num_steps


def estimate(settings: Settings, step_sizes: Sequence[int], num_classes: Sequence[int]) -> Cost:
    """The cost of training on steps of so many images and classes; some of each cluster are kept for later steps."""
    strategy = STRATEGIES[settings.strategy]
    sizes = [sum(step_sizes)] if strategy.all_at_once else list(step_sizes)
    kept_each = [settings.memory.per_cluster * (settings.memory.clusters or count) for count in num_classes]
    forward = forward_operations(settings)
    has_teacher = DISTILLATION in strategy.retention and settings.weights.distillation > 0
    num_images, operations, kept = 0, 0.0, 0
    for size, kept_of_it in zip(sizes, kept_each, strict=False):
        seen = settings.epochs * (size + kept)
        num_images += seen
        operations += seen * forward * _forwards(settings.objective)
        if has_teacher:  # an old image: the plain one through the student, both through the teacher
            operations += settings.epochs * kept * forward * (3 + 2)
        kept += min(kept_of_it, size) if strategy.selection else 0
    return Cost(num_images, operations)


def _forwards(objective: str) -> int:
    """Forward passes of an image in one update; a backward pass costs as much as two."""
    return {"moco_v2": 3 + 1, "simclr": 2 * 3, "insdisc": 3}[objective]


def forward_operations(settings: Settings) -> float:
    """Operations of one image through the encoder, counted on tensors without content."""
    options, size = settings.encoder, build_recipe(settings).size
    with torch.device("meta"):
        encoder = make_encoder(
            options.backbone, stem=options.stem, width=options.width, dim=options.dim, head=options.head
        ).eval()
        images = torch.empty(1, 3, size, size)
        with FlopCounterMode(display=False) as counter:
            encoder(images)
    return float(counter.get_total_flops())


def measured_rate(settings: Settings, seconds: float = 1.0) -> float:
    """Images a second that this machine's CPU trains on with these settings, without views; takes a few seconds."""
    learner = build_learner(settings, torch.device("cpu"))
    size, num_images = build_recipe(settings).size, min(settings.batch_size, 128)
    images = torch.randn(num_images, 3, size, size)
    ids = torch.arange(num_images)
    batch = ViewBatch(ids, ids, tuple(images for _ in range(learner.objective.num_views)), images[:0])
    learner.begin_step(0, ids, num_images)
    optimizer = torch.optim.SGD(learner.encoder.parameters(), 0.01)
    started, count = time.perf_counter(), -1
    while count < 1 or time.perf_counter() - started < seconds:
        if count == 0:
            started = time.perf_counter()
        losses, lesson = learner.losses(batch, (0, 0))
        optimizer.zero_grad()
        torch.autograd.backward(learner.total(losses))
        optimizer.step()
        learner.after_update(lesson)
        count += 1
    return num_images * count / (time.perf_counter() - started)


def in_words(costs: Sequence[Cost], images_per_second: float | None) -> str:
    """One sentence on several runs together; without a measured rate, hours of an assumed GPU."""
    num_images, operations = sum(cost.num_images for cost in costs), sum(cost.operations for cost in costs)
    runs = "1 run" if len(costs) == 1 else f"{len(costs)} runs"
    told = f"{runs}, {num_images / 1e6:,.1f} million image passes, {operations / 1e15:,.1f} petaFLOP"
    if images_per_second is not None:
        return f"{told}: about {clock(num_images / images_per_second)} of training on one process here"
    hours = operations / ASSUMED_GPU_RATE / 3600
    return f"{told}: about {hours:,.1f} hours on one GPU that sustains {ASSUMED_GPU_RATE / 1e12:.0f} TFLOP/s (assumed)"


def clock(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
