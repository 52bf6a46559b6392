"""Probe one encoder on every dataset of a stream: what is written as one row of the accuracy matrix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from ccl.data.sources import ImageSource
from ccl.encoders.reading import Encoder, PlainViewer, extract
from ccl.evaluation.accuracy_matrix import ProbeResult
from ccl.evaluation.health import Health
from ccl.evaluation.knn_probe import knn_accuracy
from ccl.evaluation.linear_probe import CACHED_PROTOCOL, fit

NUM_HEALTH_IMAGES = 2048  # a sample only: embeddings cost a second forward pass


@dataclass(frozen=True)
class ProbePart:
    """The labelled images of one step: D_j's training and test part. Labels (N,) are those of the whole stream."""

    train: ImageSource
    train_labels: Tensor
    test: ImageSource
    test_labels: Tensor


def probe_stream(
    encoder: Encoder,
    parts: Sequence[ProbePart],
    viewer: PlainViewer,
    batch_size: int = 512,
    num_health_images: int = NUM_HEALTH_IMAGES,
    on_progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Fit a probe for each part and one for all classes, by the cached protocol; every image's features are read once.

    `on_progress(done, total)` is told after each reading and each fit. Health is that of the test images' embeddings.
    The nearest neighbours' vote (200, temperature 0.07) on the same features is told beside it.
    """
    if not parts:
        raise ValueError("there are no parts to probe")
    steps = count(1)

    def tick() -> None:
        if on_progress is not None:
            on_progress(next(steps), 3 * len(parts) + 2)

    train, test, per_step = [], [], []
    for part in parts:
        train.append(extract(encoder, part.train, viewer, batch_size))  # (N, F)
        tick()
        test.append(extract(encoder, part.test, viewer, batch_size))  # (M, F)
        tick()
        per_step.append(fit(train[-1], part.train_labels).accuracy(test[-1], part.test_labels))
        tick()
    train_labels = torch.cat([part.train_labels for part in parts])
    test_labels = torch.cat([part.test_labels for part in parts])
    probe = fit(torch.cat(train), train_labels)
    all_class = [probe.accuracy(rows, part.test_labels) for rows, part in zip(test, parts, strict=True)]
    total = sum(value * len(rows) for value, rows in zip(all_class, test, strict=True)) / sum(map(len, test))
    tick()
    health = Health.of(embed_evenly(encoder, parts, viewer, num_health_images, batch_size).rows)
    tick()
    neighbours = knn_accuracy(torch.cat(train), train_labels, torch.cat(test), test_labels)
    return ProbeResult(tuple(per_step), tuple(all_class), total, CACHED_PROTOCOL, health, neighbours)


@dataclass(frozen=True)
class Embedded:
    """Some test images of a stream, embedded."""

    rows: Tensor  # (N, D), unit norm
    steps: Tensor  # (N,) counted from 0
    labels: Tensor  # (N,)


def embed_evenly(
    encoder: Encoder, parts: Sequence[ProbePart], viewer: PlainViewer, num_images: int, batch_size: int = 512
) -> Embedded:
    """At most `num_images` test images at even distances over the stream, as the head sees them."""
    sizes = [len(part.test) for part in parts]
    chosen = torch.arange(sum(sizes))
    if len(chosen) > num_images:
        chosen = torch.linspace(0, len(chosen) - 1, num_images).round().long()
    steps = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(sizes))[chosen]
    labels = torch.cat([part.test_labels for part in parts])[chosen]
    rows, start = [], 0
    for part, size in zip(parts, sizes, strict=True):
        positions = chosen[(chosen >= start) & (chosen < start + size)] - start
        start += size
        if len(positions):
            rows.append(extract(encoder, part.test.subset(positions), viewer, batch_size, "embeddings"))
    return Embedded(torch.cat(rows), steps, labels)
