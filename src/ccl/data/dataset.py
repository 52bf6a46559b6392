"""Datasets, and their preparation for a run: classes chosen, images brought to one size, sets joined."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.atomic_files import write_csv
from ccl.data.image_sources import ImageSource, chain
from ccl.errors import UserError, did_you_mean

Progress = Callable[[int, int], None]  # (done, total), in bytes or images; total is 0 where it is not known
MAX_BAD = 5.0  # percent of files that may be left out
HELD_OUT_EVERY = 5  # of each class, where there is no test part
Classes = int | str | Path | Sequence[str]  # the first so many, a file of names, or the names


@dataclass(frozen=True)
class BadImage:
    """A file that is left out of a dataset because it is not a usable image."""

    path: str  # or the address of a record in a store
    reason: str  # one line

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Dataset:
    """Images to learn from and images to test on; ids count through the training part, then through the test part."""

    name: str
    train: ImageSource
    train_labels: Tensor | None  # (N,) int64 in 0 … C-1; None = unlabelled
    test: ImageSource | None
    test_labels: Tensor | None
    class_names: tuple[str, ...]
    fingerprint: str  # equal for equal images, labels and classes; "" until load_dataset has taken it
    skipped: tuple[BadImage, ...] = ()  # left out of both parts, in their order
    notes: tuple[str, ...] = ()  # choices the user should know of, one line each


def labelled_dataset(
    name: str,
    images: ImageSource,
    labels: NDArray[np.integer],
    class_names: Sequence[str],
    is_test: NDArray[np.bool_] | None = None,
    skipped: Sequence[BadImage] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """Images with labels (N,), -1 for one to leave out, as a training and a test part.

    Where none is for the test, every fifth image of each class is held out, in their order. Classes without a training
    image are left out, and refused where they have a test image.
    """
    if is_test is None or not is_test.any():
        order = np.argsort(labels, kind="stable")
        place = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])  # of each in its class
        is_test = np.empty(len(labels), bool)
        is_test[order] = place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        notes = (
            *notes,
            f"{name} has no test part: every {HELD_OUT_EVERY}th image of each class, in order, is held out",
        )
    train, test = (np.flatnonzero(part & (labels >= 0)) for part in (~is_test, is_test))
    learned = np.unique(labels[train])
    names = tuple(class_names[label] for label in learned)
    for label in np.setdiff1d(labels[test], learned):
        missing = class_names[label]
        raise UserError(
            f"class {missing!r} of the test part of {name} is not in training{did_you_mean(missing, names)}"
        )
    numbers = np.searchsorted(learned, labels)
    has_test = len(test) > 0
    return Dataset(
        name,
        images.subset(torch.from_numpy(train)),
        torch.from_numpy(numbers[train]),
        images.subset(torch.from_numpy(test)) if has_test else None,
        torch.from_numpy(numbers[test]) if has_test else None,
        names,
        fingerprint="",
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def write_bad_images(path: Path, bad: Sequence[BadImage]) -> None:
    """A CSV table of path and reason."""
    write_csv(path, ["path", "reason"], [(image.path, image.reason) for image in bad])


def joined(datasets: Sequence[Dataset], name: str) -> Dataset:
    """Datasets one after the other: labels offset, classes called "digits/3".

    Labels are kept only if every dataset has them, and a test part only if every dataset has one.
    """
    names = [dataset.name for dataset in datasets]
    if not datasets or len(set(names)) < len(names):
        raise UserError(f"datasets to join need distinct names, got {', '.join(names) or 'none'}")
    starts = np.cumsum([0] + [len(dataset.class_names) for dataset in datasets]).tolist()

    def joined_labels(parts: Sequence[Tensor | None]) -> Tensor | None:
        known = [labels + start for labels, start in zip(parts, starts, strict=False) if labels is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    train = chain([dataset.train for dataset in datasets])
    tests = [dataset.test for dataset in datasets if dataset.test is not None]
    test = chain(tests) if len(tests) == len(datasets) else None
    has_fingerprint = all(dataset.fingerprint for dataset in datasets)
    return Dataset(
        name=name,
        train=train.with_ids(torch.arange(len(train))),
        train_labels=joined_labels([dataset.train_labels for dataset in datasets]),
        test=None if test is None else test.with_ids(len(train) + torch.arange(len(test))),
        test_labels=None if test is None else joined_labels([dataset.test_labels for dataset in datasets]),
        class_names=tuple(f"{dataset.name}/{label}" for dataset in datasets for label in dataset.class_names),
        fingerprint=_digest(dataset.fingerprint.encode() for dataset in datasets) if has_fingerprint else "",
        skipped=tuple(bad for dataset in datasets for bad in dataset.skipped),
        notes=tuple(line for dataset in datasets for line in dataset.notes),
    )


def narrowed(dataset: Dataset, classes: Classes | None, images_per_class: int | None) -> Dataset:
    """Only some classes, and only the first so many training images of each; labels renumbered in the old order."""
    if classes is None and images_per_class is None:
        return dataset
    if dataset.train_labels is None:
        raise UserError(f"{dataset.name} has no labels, so classes and images_per_class can't be chosen")
    if images_per_class is not None and images_per_class < 1:
        raise UserError(f"images_per_class must be at least 1, got {images_per_class}")
    chosen = list(range(len(dataset.class_names))) if classes is None else _chosen_classes(dataset, classes)
    renumber = torch.full((len(dataset.class_names),), -1)
    renumber[chosen] = torch.arange(len(chosen))

    def part(source: ImageSource, labels: Tensor, most: int | None) -> tuple[ImageSource, Tensor]:
        at = torch.cat([torch.nonzero(labels == label).flatten()[:most] for label in chosen]).sort().values
        return source.subset(at), renumber[labels[at]]

    train, train_labels = part(dataset.train, dataset.train_labels, images_per_class)
    test, test_labels = dataset.test, dataset.test_labels
    if test is not None and test_labels is not None:
        test, test_labels = part(test, test_labels, None)
    names = tuple(dataset.class_names[label] for label in chosen)
    return replace(
        dataset, train=train, train_labels=train_labels, test=test, test_labels=test_labels, class_names=names
    )


def _chosen_classes(dataset: Dataset, classes: Classes) -> list[int]:
    """The labels of the wanted classes, ascending: a list of names is a set, so its order does not matter."""
    known = {name: label for label, name in enumerate(dataset.class_names)}
    if isinstance(classes, int):
        if not 1 <= classes <= len(known):
            nearest = min(max(classes, 1), len(known))
            raise UserError(f"{dataset.name} has {len(known)} classes, not {classes}; nearest valid value: {nearest}")
        return list(range(classes))
    names = _read_list(Path(classes)) if isinstance(classes, str | Path) else list(classes)
    if not names:
        raise UserError("the list of classes is empty")
    for name in names:
        if name not in known:
            raise UserError(f"{dataset.name} has no class {name!r}{did_you_mean(name, known)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class {twice!r} is named twice in the list of classes")
    return sorted(known[name] for name in names)


def _read_list(path: Path) -> list[str]:
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read the list of classes {path}: {type(error).__name__}") from error
    return [line.strip() for line in lines if line.strip()]


def taken_fingerprint(
    dataset: Dataset, classes: Classes | None, resize: int | None, skipped: Sequence[BadImage] = ()
) -> str:
    """A hash of images (or file names and sizes), labels and class names; a class list adds its name and hash.

    Files that are then left out are in it too: one that rots without a change of size moves the ids of others.
    """
    parts: list[bytes | memoryview] = [repr((dataset.class_names, resize)).encode()]
    for source, labels in ((dataset.train, dataset.train_labels), (dataset.test, dataset.test_labels)):
        parts.append(b"" if labels is None else labels.numpy().tobytes())
        parts.extend([] if source is None else source.content_parts())
    left_out = (Path(bad.path) for bad in skipped)
    parts.extend(f"without {path.parent.name}/{path.name}".encode(errors="surrogateescape") for path in left_out)
    if classes is None:
        return _digest(parts)
    if isinstance(classes, int):
        title = f"first{classes}"
    else:
        title = Path(classes).stem if isinstance(classes, str | Path) else "list"
    class_list = _digest(name.encode() for name in dataset.class_names)[:8]
    return f"{_digest(parts)}-{re.sub('[^A-Za-z0-9_]+', '_', title)}-{class_list}"


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    """Sixteen hexadecimal digits of a sha256 in which the borders between parts count."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()[:16]
