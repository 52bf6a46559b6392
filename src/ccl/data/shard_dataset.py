"""A dataset from shards: labels from the records, a test part from shards called val… or test…, or held out."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data.dataset import BadImage, Dataset, Progress
from ccl.data.folders import HELD_OUT_EVERY
from ccl.data.ingest import MAX_BAD
from ccl.data.remote_files import is_remote
from ccl.data.shards import ShardedImages, open_shards, shard_paths
from ccl.data.sources import ImageSource
from ccl.errors import UserError, did_you_mean

_TEST_NAMES = ("val", "test")  # how the names of test shards, or of their folders, begin


def read_shards(pattern: str, root: Path, progress: Progress | None = None) -> Dataset:
    """The dataset in the shards that a pattern names below the data root; only indices are read."""
    paths = shard_paths(pattern, root)
    train_paths = [path for path in paths if not _is_test(path, root)]
    if not train_paths:
        raise UserError(f"all shards of {pattern!r} are called val… or test…, so there is nothing to learn from")
    whole = open_shards(paths, progress)  # both parts at once: keys must be distinct over both
    is_test = np.isin(whole.source.numbers, [number for number, path in enumerate(paths) if _is_test(path, root)])
    name, notes = os.path.basename(pattern) or root.resolve().name, whole.notes
    if (whole.labels < 0).all():
        if is_test.any():
            notes = (*notes, f"{pattern}: its images have no labels, so the test shards are skipped")
        return Dataset(name, _at(whole, ~is_test), None, None, None, (), "", notes=notes)
    is_labelled = whole.labels >= 0
    skipped = _unlabelled(whole, is_labelled)
    labels, class_names = _sorted_classes(whole)
    if not is_test.any():
        is_test = _held_out(labels) & is_labelled
        notes = (*notes, f"{pattern} has no test shards: every {HELD_OUT_EVERY}th record of each class is held out")
    is_train, is_test = ~is_test & is_labelled, is_test & is_labelled
    labels, class_names = _without_test_only(labels, class_names, is_train, is_test)
    has_test = bool(is_test.any())
    return Dataset(
        name,
        _at(whole, is_train),
        _labels(labels[is_train]),
        _at(whole, is_test) if has_test else None,
        _labels(labels[is_test]) if has_test else None,
        class_names,
        "",
        skipped=skipped,
        notes=notes,
    )


def _is_test(path: str, root: Path) -> bool:
    # Of a path in a store without scheme and bucket, else below the root: neither may be called test by chance.
    below = "/".join(path.split("/")[3:]) if is_remote(path) else os.path.relpath(path, root)
    folder, name = os.path.split(below)
    return name.lower().startswith(_TEST_NAMES) or os.path.basename(folder).lower().startswith(_TEST_NAMES)


def _at(whole: ShardedImages, is_wanted: NDArray[np.bool_]) -> ImageSource:
    positions = torch.from_numpy(np.nonzero(is_wanted)[0])
    return whole.source.subset(positions).with_ids(torch.arange(len(positions)))


def _labels(labels: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _unlabelled(whole: ShardedImages, is_labelled: NDArray[np.bool_]) -> tuple[BadImage, ...]:
    """Records without a label among others that have one, as images that are left out."""
    missing = np.nonzero(~is_labelled)[0].tolist()
    if len(missing) > MAX_BAD / 100 * len(whole.source):
        raise UserError(
            f"{len(missing)} of {len(whole.source)} records have no label, the first is "
            f"{whole.source.name(missing[0])}; label all of them, or none"
        )
    return tuple(BadImage(whole.source.name(at), "it has no label, and others have one") for at in missing)


def _sorted_classes(whole: ShardedImages) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Labels and classes in an order that does not depend on that of the records: by number, else by name."""
    names = whole.class_names
    are_numbers = all(name.isdecimal() for name in names)
    order = sorted(range(len(names)), key=lambda at: (int(names[at]), names[at]) if are_numbers else names[at])
    table = np.full(len(names) + 1, -1, np.int32)  # the last one stands for "no label"
    table[order] = np.arange(len(order))
    return table[whole.labels], tuple(names[at] for at in order)


def _held_out(labels: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Every fifth record of each class, in the order of the records."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    starts = np.searchsorted(ranked, ranked)  # where each one's class begins
    held = np.zeros(len(labels), bool)
    held[order] = (np.arange(len(labels)) - starts) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return held


def _without_test_only(
    labels: NDArray[np.int32], class_names: Sequence[str], is_train: NDArray[np.bool_], is_test: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Refuses a class that is in the test shards only; classes of records that are left out are let go."""
    learned = np.unique(labels[is_train])
    for label in np.setdiff1d(labels[is_test], learned).tolist():
        known = [class_names[at] for at in learned.tolist()]
        name = class_names[label]
        raise UserError(f"class {name!r} of the test shards is not in the others{did_you_mean(name, known)}")
    return np.searchsorted(learned, labels).astype(np.int32), tuple(class_names[at] for at in learned.tolist())
