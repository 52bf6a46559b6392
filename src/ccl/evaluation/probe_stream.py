"""Probe one encoder on every dataset of a stream: what is written as one row of the accuracy matrix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from ccl.data import ImageSource, chain, evenly_spaced
from ccl.encoders import Encoder, extract, extract_both
from ccl.evaluation.accuracy_matrix import ProbeResult
from ccl.evaluation.health import Health
from ccl.evaluation.paper_probe import PAPER_PROTOCOL
from ccl.evaluation.probes import CACHED_PROTOCOL, LinearClassifier, fair_voters, fit, knn_accuracy
from ccl.views import Viewer

FitImages = Callable[[ImageSource, Tensor], LinearClassifier]  # of images and their labels (N,)
NUM_HEALTH_IMAGES = 2048  # of which the health is measured, at even distances


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
    viewer: Viewer,
    batch_size: int = 512,
    num_health_images: int = NUM_HEALTH_IMAGES,
    on_progress: Callable[[int, int], None] | None = None,
    fit_images: FitImages | None = None,
) -> ProbeResult:
    """Fit a probe for each part and one for all classes, by the cached protocol; every image is read once for all.

    With `fit_images`, the paper's protocol, the linear probes are fitted on the images by that instead. Health is that
    of the test images' embeddings. `on_progress(done, total)` is called after each reading and each fit.
    """
    steps = count(1)

    def tick() -> None:
        if on_progress is not None:
            on_progress(next(steps), 3 * len(parts) + 2)

    train, test, embeddings, per_step = [], [], [], []
    for part in parts:
        train.append(extract(encoder, part.train, viewer, batch_size))  # (N, F)
        tick()
        features, embedded = extract_both(encoder, part.test, viewer, batch_size)  # (M, F), (M, D)
        test.append(features)
        embeddings.append(embedded)
        tick()
        own = fit_images(part.train, part.train_labels) if fit_images else fit(train[-1], part.train_labels)
        per_step.append(own.accuracy(test[-1], part.test_labels))
        tick()
    train_rows, train_labels = torch.cat(train), torch.cat([part.train_labels for part in parts])
    test_rows, test_labels = torch.cat(test), torch.cat([part.test_labels for part in parts])
    every = chain([part.train for part in parts])
    probe = fit_images(every, train_labels) if fit_images else fit(train_rows, train_labels)
    all_class = [probe.accuracy(rows, part.test_labels) for rows, part in zip(test, parts, strict=True)]
    total = sum(value * len(rows) for value, rows in zip(all_class, test, strict=True)) / len(test_rows)
    tick()
    health = Health.of(torch.cat(embeddings)[evenly_spaced(len(test_rows), num_health_images)])
    tick()
    voters = fair_voters(len(train_rows), len(probe.classes))
    neighbours = knn_accuracy(train_rows, train_labels, test_rows, test_labels, voters)
    protocol = PAPER_PROTOCOL if fit_images else CACHED_PROTOCOL
    return ProbeResult(tuple(per_step), tuple(all_class), total, protocol, health, neighbours)


@dataclass(frozen=True)
class StreamSample:
    """Embeddings of some test images of a stream."""

    rows: Tensor  # (N, D), unit norm
    steps: Tensor  # (N,) counted from 0
    labels: Tensor  # (N,)


def embed_evenly(
    encoder: Encoder, parts: Sequence[ProbePart], viewer: Viewer, num_images: int, batch_size: int = 512
) -> StreamSample:
    """At most `num_images` test images at even distances over the stream, as the head sees them."""
    sizes = [len(part.test) for part in parts]
    chosen = evenly_spaced(sum(sizes), num_images)
    steps = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(sizes))[chosen]
    labels = torch.cat([part.test_labels for part in parts])[chosen]
    rows, start = [], 0
    for part, size in zip(parts, sizes, strict=True):
        positions = chosen[(chosen >= start) & (chosen < start + size)] - start
        start += size
        if len(positions):
            rows.append(extract(encoder, part.test.subset(positions), viewer, batch_size, "embeddings"))
    return StreamSample(torch.cat(rows), steps, labels)
