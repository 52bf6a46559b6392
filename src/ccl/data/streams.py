"""Steps of a stream: which images arrive together, by class or by domain."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data.dataset import Dataset, joined
from ccl.errors import UserError
from ccl.seeding import permutation

Labels = Tensor | NDArray[np.integer] | Sequence[int]


@dataclass(frozen=True)
class Step:
    """One delivery of the stream."""

    name: str  # "step 1" or the domain's name
    classes: tuple[int, ...]  # ascending; () if unlabelled
    indices: Tensor  # (n,) sorted positions in the training part


def class_incremental(labels: Labels, num_steps: int, seed: int) -> list[Step]:
    """Classes in an order drawn from the seed, cut in steps of equal numbers of classes, the first ones larger by one.

    Paper: the data stream of class-incremental learning, disjoint classes in each D_t.
    """
    known = torch.unique(torch.as_tensor(labels))  # (C,) ascending
    if not 1 <= num_steps <= len(known):
        if len(known) == 0:
            raise UserError("there are no labelled images to cut in steps")
        nearest = min(max(num_steps, 1), len(known))
        raise UserError(f"{len(known)} classes can't be cut in {num_steps} steps; nearest valid value: {nearest}")
    order = known[permutation(known, seed, "class order")]  # (C,)
    steps = []
    for number, part in enumerate(torch.tensor_split(order, num_steps), start=1):
        classes = tuple(sorted(part.tolist()))
        steps.append(Step(f"step {number}", classes, of_classes(labels, classes)))
    return steps


def domain_incremental(datasets: Sequence[Dataset]) -> tuple[Dataset, list[Step]]:
    """All datasets joined into one, and one step for each in the order given."""
    whole = joined(datasets, name="+".join(dataset.name for dataset in datasets))
    steps = []
    first_position, first_class = 0, 0
    for dataset in datasets:
        num_images, num_classes = len(dataset.train), len(dataset.class_names)
        classes = range(first_class, first_class + num_classes) if whole.train_labels is not None else ()
        indices = torch.arange(first_position, first_position + num_images)
        steps.append(Step(dataset.name, tuple(classes), indices))
        first_position += num_images
        first_class += num_classes
    return whole, steps


def of_classes(labels: Labels, classes: Sequence[int]) -> Tensor:
    """Sorted positions of the images of these classes, (n,); may be empty."""
    known = torch.as_tensor(labels)
    return torch.nonzero(torch.isin(known, torch.tensor(list(classes), dtype=known.dtype))).flatten()


def describe(steps: Sequence[Step]) -> str:
    """One line: "100 classes in 3 steps: 34, 33, 33", or "… in 4 steps of 25" where all are equal."""
    noun = "classes" if all(step.classes for step in steps) else "images"
    sizes = [len(step.classes) if noun == "classes" else len(step.indices) for step in steps]
    plural = "step" if len(steps) == 1 else "steps"
    if len(set(sizes)) == 1:
        return f"{sum(sizes):,} {noun} in {len(steps)} {plural} of {sizes[0]:,}"
    return f"{sum(sizes):,} {noun} in {len(steps)} {plural}: {', '.join(str(size) for size in sizes)}"
