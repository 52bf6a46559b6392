"""How fast a machine is, measured here or assumed of a GPU, and what that makes of a run's cost in words."""

import time
from collections.abc import Callable, Sequence

import torch

from ccl.data import ArraySource
from ccl.runs.build import build_learner, build_plan, build_recipe, build_viewer
from ccl.runs.cost import Cost
from ccl.settings import Settings
from ccl.training import update

# Operations a second that one recent data-centre GPU sustains on such convolutions in half precision; not measured.
ASSUMED_GPU_RATE = 20e12
_LEAST_FOR_GPU = 1e11  # operations of an update below which starting its kernels takes longer than their work


def measured_rate(settings: Settings, seconds: float = 2.0, now: Callable[[], float] = time.perf_counter) -> float:
    """Images a second that this machine's CPU learns from, views included, decoding of files not; takes seconds."""
    device = torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    # Small batches of a large network: its rate hardly depends on them, and one update of 512 would take a minute.
    groups = settings.encoder.batch_norm_groups
    num_images = groups * max(1, min(settings.batch_size, 64) // groups)
    size, count = settings.data.resize or build_recipe(settings).size, 4 * num_images
    source = ArraySource(torch.randint(256, (count, 3, size, size), dtype=torch.uint8))
    learner.begin_step(0, source.ids, count)
    optimizer = build_plan(settings).make_optimizer(learner)
    batches = torch.split(torch.arange(count), num_images)
    started, done = now(), -1
    while done < 1 or now() - started < seconds:
        chosen = [batches[done % len(batches)]]
        (batch,) = viewer.batches(source, chosen, moment=(0, done), num_views=learner.objective.num_views)
        update(learner, batch, optimizer, (0, 0))
        done += 1
        if done == 0:  # the first update warms everything up
            started = now()
    return num_images * done / (now() - started)


def in_words(costs: Sequence[Cost], images_per_second: float | None) -> str:
    """One sentence on several runs together; without a measured rate, hours of an assumed GPU."""
    num_images, operations = sum(cost.num_images for cost in costs), sum(cost.operations for cost in costs)
    runs = "1 run" if len(costs) == 1 else f"{len(costs)} runs"
    text = f"{runs}, {num_images / 1e6:,.1f} million image passes, {operations / 1e15:,.1f} petaFLOP"
    if images_per_second is not None:
        passes = sum(cost.passes for cost in costs)
        return (
            f"{text}: about {clock(passes / images_per_second)} in one process here ({images_per_second:,.0f} images/s)"
        )
    return f"{text}: about {clock(operations / ASSUMED_GPU_RATE)} on {ASSUMED}"


ASSUMED = f"one GPU that sustains {ASSUMED_GPU_RATE / 1e12:.0f} TFLOP/s (assumed, not measured)"


def sheet(settings: Settings, cost: Cost, images_per_second: float | None) -> list[tuple[str, str]]:
    """The whole estimate, a term and its words a line."""
    passes = f"{cost.num_images / 1e6:,.2f} million image passes in {cost.num_updates:,} updates"
    lines = [
        ("network", f"{settings.encoder.backbone}, {cost.parameters / 1e6:,.2f} million parameters"),
        ("training", f"{passes}, {cost.operations / 1e15:,.2f} petaFLOP"),
        (
            "per image",
            f"{cost.forward_operations / 1e9:,.3f} GFLOP forward, {cost.operations_per_image / 1e9:,.3f} learned",
        ),
        ("probes, selection", f"{cost.num_read / 1e6:,.2f} million images read; fitting the probes is not counted"),
        (
            "memory",
            f"{size(cost.network_bytes)} networks and queues, {size(cost.activation_bytes)} a batch's activations",
        ),
        ("disk", f"{size(cost.checkpoint_bytes)} a checkpoint, {settings.checkpoint.keep} kept; images kept beside"),
        ("between ranks", f"{size(cost.message_bytes)} of gradients and keys a rank and update, if there are several"),
    ]
    if images_per_second is not None:
        here = f"about {clock(cost.passes / images_per_second)} at {images_per_second:,.0f} images/s, measured just now"
        lines.append(("time here", here))
    if cost.operations / cost.num_updates < _LEAST_FOR_GPU:
        lines.append(("time on a GPU", "not estimated: updates so small don't keep one busy"))
    else:
        lines.append(("time on a GPU", f"about {clock(cost.operations / ASSUMED_GPU_RATE)} on {ASSUMED}"))
    return lines


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
