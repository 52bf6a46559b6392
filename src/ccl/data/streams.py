"""Which images come together: the steps of a stream, by class, by domain or at random, and the batches of an epoch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data.dataset import Dataset, joined
from ccl.errors import UserError, counted
from ccl.seeding import permutation

Item = TypeVar("Item")
Labels = Tensor | NDArray[np.integer] | Sequence[int]
DEFAULT_MIXING = 0.2


@dataclass(frozen=True)
class Step:
    """One delivery of the stream."""

    name: str  # "step 1" or the domain's name
    classes: tuple[int, ...]  # of its images, ascending; () if unlabelled
    indices: Tensor  # (n,) sorted positions in the training part


def class_incremental(labels: Labels, num_steps: int, seed: int) -> list[Step]:
    """Classes in an order drawn from the seed, cut in steps of equal numbers of classes, the first ones larger by one.

    Paper: the data stream of class-incremental learning, disjoint classes in each D_t.

    >>> first, second = ccl.data.class_incremental(labels=[0, 1, 2, 3, 0, 1], num_steps=2, seed=0)
    >>> first.classes, first.indices
    ((0, 2), tensor([0, 2, 4]))
    """
    known = torch.unique(torch.as_tensor(labels))  # (C,) ascending
    _refuse_steps(num_steps, len(known), "classes")
    order = known[permutation(known, seed, "class order")]  # (C,)
    return _steps([of_classes(labels, part.tolist()) for part in torch.tensor_split(order, num_steps)], labels)


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


def data_incremental(
    ids: Tensor, num_steps: int, seed: int, labels: Labels | None = None, mixing: float = 1.0
) -> list[Step]:
    """Images in their `arrival_order`, a random one by default, cut in equal steps, the first ones larger by one."""
    _refuse_steps(num_steps, len(ids), "images")
    return _steps(torch.tensor_split(arrival_order(ids, seed, labels, mixing), num_steps), labels)


def blurred_incremental(ids: Tensor, labels: Labels, num_steps: int, mixing: float, seed: int) -> list[Step]:
    """The class-incremental stream, but each step gives the share `mixing` of its images to the others in equal parts.

    A stream of one step has no border to blur.
    """
    own = class_incremental(labels, num_steps, seed)
    num_others = num_steps - 1
    received: list[list[Tensor]] = [[] for _ in own]
    for number, step in enumerate(own):
        shuffled = step.indices[permutation(ids[step.indices], seed, "given away")]  # (n,)
        num_given = round(_share(mixing) * len(shuffled)) if num_others else 0
        received[number].append(shuffled[num_given:])
        for turn in range(num_others):  # the next step first: what is left over goes round too, so sizes stay equal
            other = (number + 1 + turn) % num_steps
            received[other].append(shuffled[:num_given][turn::num_others])
    return _steps([torch.cat(parts) for parts in received], labels)


def task_free(
    ids: Tensor, chunk: int, seed: int, labels: Labels | None = None, mixing: float = DEFAULT_MIXING, minimum: int = 1
) -> list[Step]:
    """Images in their `arrival_order`, cut after every `chunk` of them whatever they show; the last as in `chunked`."""
    _refuse_steps(1, len(ids), "images")
    order = arrival_order(ids, seed, labels, mixing).tolist()
    return _steps([torch.tensor(part) for part in chunked(order, chunk, minimum)], labels)


def chunked(items: Iterable[Item], size: int, minimum: int = 1) -> Iterator[list[Item]]:
    """Lists of `size` items in their order; the last may be shorter, and one below `minimum` joins the one before it.

    No more is read than the next list needs: `size` items, and `minimum` beyond where that is above 1.
    """
    if size < 1:
        raise UserError(f"a chunk can't have {size} items; nearest valid value: 1")
    if not 1 <= minimum <= size:
        nearest = min(max(minimum, 1), size)
        raise UserError(f"the minimum of chunks of {size} can't be {minimum}; nearest valid value: {nearest}")
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size + (minimum if minimum > 1 else 0):  # what is left can now stand alone
            yield waiting[:size]
            del waiting[:size]
    if waiting:
        yield waiting


def arrival_order(ids: Tensor, seed: int, labels: Labels | None = None, mixing: float = DEFAULT_MIXING) -> Tensor:
    """Positions (N,) in an order in which classes come and go gradually; without labels, in a random one.

    An image's time is (1 - mixing) of its place in the stream class by class and `mixing` of a random place: 0 is one
    class after the other, in the order of `class_incremental`; 1 is random.
    """
    by_chance = permutation(ids, seed, "arrival")  # (N,)
    if labels is None:
        return by_chance
    known, numbers = torch.unique(torch.as_tensor(labels), return_inverse=True)  # (C,), (N,)
    turn = torch.argsort(permutation(known, seed, "class order"))  # (C,): when each class has its turn
    within = permutation(ids, seed, "within a class")  # (N,)
    by_class = within[torch.argsort(turn[numbers[within]], stable=True)]  # (N,)
    # An order's argsort is each image's place in it.
    time = (1 - _share(mixing)) * torch.argsort(by_class).double() + mixing * torch.argsort(by_chance).double()
    return by_chance[torch.argsort(time[by_chance], stable=True)]  # times that are equal follow chance, not position


def cut_alike(order: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """An order (M,) cut in parts that are the same shares of it as these sizes are of their sum; sorted, some empty."""
    ends = np.cumsum(sizes) * len(order) // sum(sizes)
    return [part.sort().values for part in torch.tensor_split(order, ends[:-1].tolist())]


def _refuse_steps(num_steps: int, count: int, noun: str) -> None:
    if count == 0:
        raise UserError(f"there are no {noun} to cut in steps")
    if not 1 <= num_steps <= count:
        nearest = min(max(num_steps, 1), count)
        raise UserError(f"{count} {noun} can't be cut in {num_steps} steps; nearest valid value: {nearest}")


def _share(mixing: float) -> float:
    if not 0 <= mixing <= 1:
        raise UserError(f"mixing is a share, not {mixing}; nearest valid value: {min(max(mixing, 0), 1)}")
    return mixing


def _steps(parts: Sequence[Tensor], labels: Labels | None) -> list[Step]:
    """Positions (n,) of each step as steps, with the classes of their labels."""
    known = None if labels is None else torch.as_tensor(labels)
    steps = []
    for number, part in enumerate(parts, start=1):
        classes = () if known is None else tuple(torch.unique(known[part]).tolist())
        steps.append(Step(f"step {number}", classes, part.sort().values))
    return steps


def of_classes(labels: Labels, classes: Sequence[int]) -> Tensor:
    """Sorted positions of the images of these classes, (n,); may be empty."""
    known = torch.as_tensor(labels)
    return torch.nonzero(torch.isin(known, torch.tensor(list(classes), dtype=known.dtype))).flatten()


def describe(steps: Sequence[Step]) -> str:
    """One line: "100 classes in 4 steps of 25", or "… in 3 steps of 33 to 34".

    Steps that share classes, or have none, are counted in images: "500 images of 10 classes in 4 steps of 125".
    """
    sizes = [len(step.classes) for step in steps]
    num_classes = len({label for step in steps for label in step.classes})
    what = f"{num_classes:,} classes"
    if not all(sizes) or sum(sizes) > num_classes:
        sizes = [len(step.indices) for step in steps]
        what = f"{sum(sizes):,} images" + (f" of {what}" if num_classes else "")
    each = f"{min(sizes):,}" if len(set(sizes)) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    return f"{what} in {counted(len(steps), 'step')} of {each}"


def epoch_batches(ids: Tensor, batch_size: int, *context: int | str, multiple: int = 1) -> list[Tensor]:
    """Positions of all images in random order, in as few batches as `batch_size` allows, of sizes as equal as possible.

    Each size is a multiple of `multiple` (ranks times batch-norm groups). The up to multiple - 1 images that then don't
    fit are the last of the random order, so they are others in each epoch as long as the epoch is in the context.
    """
    if multiple < 1 or batch_size < multiple:
        raise UserError(f"batch_size {batch_size} is smaller than {max(multiple, 1)}, which must divide every batch")
    num_units = len(ids) // multiple
    if num_units == 0:
        if len(ids) == 0:
            return []
        raise UserError(
            f"{counted(len(ids), 'image')} can't fill one batch, whose size must be a multiple of {multiple}"
        )
    units_per_batch = batch_size // multiple
    num_batches = -(-num_units // units_per_batch)
    order = permutation(ids, *context, "batches")[: num_units * multiple]  # (N,)
    units = torch.tensor_split(order.view(num_units, multiple), num_batches)
    return [part.flatten() for part in units]


def evenly_spaced(num_images: int, most: int) -> Tensor:
    """Positions of at most so many images at even distances, from the first to the last."""
    return torch.arange(num_images) if num_images <= most else torch.linspace(0, num_images - 1, most).round().long()
