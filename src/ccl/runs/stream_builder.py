"""Images cut in steps by the kind of stream that the settings name, and what each step is probed on."""

import torch
from torch import Tensor

from ccl.data import (
    Dataset,
    Step,
    arrival_order,
    blurred_incremental,
    class_incremental,
    cut_alike,
    data_incremental,
    domain_incremental,
    of_classes,
    task_free,
)
from ccl.data.streams import DEFAULT_MIXING
from ccl.errors import UserError
from ccl.evaluation import ProbePart
from ccl.settings import Settings

DEFAULT_STEPS = 5


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
