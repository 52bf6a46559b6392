"""The stream that the settings describe: its data, cut in steps, and what each step is probed on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl.data import (
    Dataset,
    ImageSource,
    Step,
    arrival_order,
    blurred_incremental,
    chain,
    class_incremental,
    cut_alike,
    data_incremental,
    domain_incremental,
    load_dataset,
    of_classes,
    task_free,
)
from ccl.data.streams import DEFAULT_MIXING
from ccl.errors import UserError, counted
from ccl.evaluation import ProbePart
from ccl.runs.build import build_selection, fitting, refuse_ranks
from ccl.settings import Settings

DEFAULT_STEPS = 5


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
    _refuse_impossible(settings, stream)
    return stream


def _refuse_impossible(settings: Settings, stream: Stream) -> None:
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


def cut_datasets(settings: Settings, datasets: list[Dataset]) -> tuple[Dataset, list[Step]]:
    """All datasets as one, and its steps."""
    if settings.stream_kind == "domain":
        if settings.steps not in (None, len(datasets)):
            raise UserError(
                f"steps is {settings.steps}, but a domain-incremental stream has one step per dataset: "
                f"{len(datasets)}; leave steps out, or set data.stream=class"
            )
        return domain_incremental(datasets)
    dataset = datasets[0] if len(datasets) == 1 else domain_incremental(datasets)[0]
    return dataset, cut(settings, dataset.train.ids, dataset.train_labels)


def cut(settings: Settings, ids: Tensor, labels: Tensor | None) -> list[Step]:
    """The steps of training images (N,), (N,) in any kind of stream but a domain-incremental one."""
    kind, num_steps, seed = settings.stream_kind, settings.steps or DEFAULT_STEPS, settings.stream_seed
    if kind in ("data", "free"):
        if labels is None and settings.data.mixing is not None:
            raise UserError("images without labels come in random order; leave data.mixing out")
        if settings.data.chunk is None:
            return data_incremental(ids, num_steps, seed, labels, _mixing(settings))
        return _in_chunks(settings, settings.data.chunk, ids, labels)
    if labels is None:
        if kind == "class" and settings.steps in (None, 1):
            return [Step("step 1", (), torch.arange(len(ids)))]
        advice = "steps=1 or data.stream=data" if kind == "class" else "data.stream=data"
        raise UserError(f"images without labels can't be cut by class; set {advice}")
    if kind == "blurred":
        return blurred_incremental(ids, labels, num_steps, _mixing(settings), seed)
    return class_incremental(labels, num_steps, seed)


def _in_chunks(settings: Settings, chunk: int, ids: Tensor, labels: Tensor | None) -> list[Step]:
    minimum = min(settings.batch_size, chunk)  # a last chunk that can't fill a batch could not be learned
    steps = task_free(ids, chunk, settings.stream_seed, labels, _mixing(settings), minimum)
    if settings.steps not in (None, len(steps)):
        raise UserError(
            f"steps is {settings.steps}, but {len(ids):,} images in chunks of {chunk} are {len(steps)} steps; "
            f"set steps={len(steps)}, or one of steps and data.chunk to null"
        )
    return steps


def _mixing(settings: Settings) -> float:
    """The mixing for the stream's kind; data-incremental streams are random."""
    if settings.stream_kind == "data":
        return 1.0
    return DEFAULT_MIXING if settings.data.mixing is None else settings.data.mixing


def probe_parts(settings: Settings, dataset: Dataset, steps: list[Step]) -> list[ProbePart]:
    """One part for each step; none where labels or a test part are missing.

    Steps that are cut by class or domain are tested on the test images of their classes; a blurred one is probed as if
    its borders were sharp, so that all mixings are asked the same. Where images come in an order, test images come in
    the same one: each part has the same share of them as the step has of the training images.
    """
    train_labels, test, test_labels = dataset.train_labels, dataset.test, dataset.test_labels
    if train_labels is None or test is None or test_labels is None:
        return []
    if settings.stream_kind == "blurred":
        steps = class_incremental(train_labels, len(steps), settings.stream_seed)
    if settings.stream_kind in ("data", "free"):
        order = arrival_order(test.ids, settings.stream_seed, test_labels, _mixing(settings))
        tested = cut_alike(order, [len(step.indices) for step in steps])
    else:
        tested = [of_classes(test_labels, step.classes) for step in steps]
    parts = []
    for number, (step, some) in enumerate(zip(steps, tested, strict=True), start=1):
        if not len(some) and settings.probe.after != "never":
            raise UserError(f"step {number} has no test images to be probed on; set fewer steps or probe.after=never")
        parts.append(
            ProbePart(
                dataset.train.subset(step.indices), train_labels[step.indices], test.subset(some), test_labels[some]
            )
        )
    return parts
