"""Datasets by name."""

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import PIL
import torch
from torch import Tensor

from ccl.atomic_files import write_file
from ccl.data.dataset import MAX_BAD, BadImage, Classes, Dataset, Progress, joined, narrowed, taken_fingerprint
from ccl.data.decoding import can_read_heif
from ccl.data.finding_images import Found
from ccl.data.folders import scan
from ccl.data.image_sources import ImageSource
from ccl.data.ingest import collected
from ccl.data.shard_index import SETTLED_NS, cache_folder
from ccl.errors import UserError, did_you_mean

EMBEDDED_DOMAINS = ("digits", "capitals", "greek", "symbols", "textures")
DATASET_NAMES = (
    *EMBEDDED_DOMAINS,
    "embedded",
    "cifar10",
    "cifar100",
    "folder",
    "shards",
    "imagenet-sub",
    "imagenet-full",
)
_RULES = 2  # of what is refused: by others, what was usable must be looked into again
_IMAGENET_SUB_CLASSES = 100  # Paper: ImageNet-Sub has 100 classes; the authors' code takes the first, sorted by wnid


def load_dataset(
    name: str,
    root: Path | str | None = None,
    *,
    resize: int | None = None,
    classes: Classes | None = None,
    images_per_class: int | None = None,
    seed: int = 0,
    download: bool = False,
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
) -> Dataset:
    """A dataset of `DATASET_NAMES` (or "folder:sub/path", "shards:pattern") below the data root, narrowed and resized.

    Files that can't be decoded are left out and listed in `skipped`; more than `max_bad` percent of them are refused.
    `seed` matters to embedded sets only, which are drawn from it. `progress` is called with bytes of downloads and
    with images that are decoded.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, resize=16)
    >>> len(symbols.train), len(symbols.class_names), symbols.train.images.shape
    (30, 10, torch.Size([30, 3, 16, 16]))
    """
    if resize is not None and resize < 1:
        raise UserError(f"resize must be at least 1 pixel, got {resize}")
    if name == "imagenet-sub" and classes is None:
        classes = _IMAGENET_SUB_CLASSES
    whole = narrowed(_opened(name, data_root(root), resize, seed, download, progress), classes, images_per_class)
    dataset = ingested(whole, resize, progress, max_bad)
    return replace(dataset, fingerprint=taken_fingerprint(whole, classes, resize, dataset.skipped))


def data_root(root: Path | str | None) -> Path:
    """The folder below which data is looked for: as given, else CCL_DATA, else ./data."""
    return Path(root or os.environ.get("CCL_DATA") or "data").expanduser()


def ingested(
    dataset: Dataset, side: int | None = None, progress: Progress | None = None, max_bad: float = MAX_BAD
) -> Dataset:
    """The dataset without the files that can't be decoded, and squared where a side is given; ids start at 0 again."""
    train, positions, skipped = _usable(dataset.train, side, 0, progress, max_bad)
    labels, test, test_labels = dataset.train_labels, None, None
    if dataset.test is not None:
        test, test_positions, more = _usable(dataset.test, side, len(train), progress, max_bad)
        test_labels = None if dataset.test_labels is None else dataset.test_labels[test_positions]
        skipped = (*skipped, *more)
    return replace(
        dataset,
        train=train,
        train_labels=None if labels is None else labels[positions],
        test=test,
        test_labels=test_labels,
        skipped=(*dataset.skipped, *skipped),
    )


def _usable(
    source: ImageSource, side: int | None, first_id: int, progress: Progress | None, max_bad: float
) -> tuple[ImageSource, Tensor, tuple[BadImage, ...]]:
    """The images that can be decoded, squared where a side is given, their positions, and the others.

    Which ones they are is remembered in the cache folder: without a side, unchanged files are not decoded again.
    """
    about, newest = source.change() if side is None else (b"", 0)
    key = hashlib.sha256(f"{PIL.__version__} {can_read_heif()} {_RULES} ".encode() + about).hexdigest()[:32]
    kept = cache_folder() / "unusable" / f"{key}.json"
    if about and (bad := _kept_positions(kept, len(source))) is not None:
        again = collected(Found(source.subset(bad)), max_bad=100.0)  # they may be readable by now
        if len(again.skipped) <= max_bad / 100 * len(source):
            is_sound = torch.ones(len(source), dtype=torch.bool)
            is_sound[bad] = torch.isin(torch.arange(len(bad)), again.positions)
            positions = torch.nonzero(is_sound).flatten()
            return source.subset(positions).with_ids(first_id + torch.arange(len(positions))), positions, again.skipped
    found = collected(Found(source), side, first_id=first_id, progress=progress, max_bad=max_bad)
    if about and newest <= time.time_ns() - SETTLED_NS:
        missing = sorted({*range(len(source))} - {*found.positions.tolist()})
        with suppress(OSError):  # where it can't be kept, files are decoded again
            write_file(kept, json.dumps(missing))
    return found.source, found.positions, found.skipped


def _kept_positions(path: Path, num_images: int) -> Tensor | None:
    """Positions (n,) as they were kept; None where there are none that can be used."""
    try:
        found = torch.tensor(json.loads(path.read_text(encoding="utf-8"))).long()
    except (OSError, ValueError, TypeError, RuntimeError):
        return None
    return found if found.ndim == 1 and bool(((found >= 0) & (found < num_images)).all()) else None


def _opened(name: str, root: Path, resize: int | None, seed: int, download: bool, progress: Progress | None) -> Dataset:
    """The whole dataset; imports are late, as each kind needs packages of its own."""
    if name in EMBEDDED_DOMAINS or name == "embedded":
        from ccl.data.embedded_datasets import MAX_SIZE, MIN_SIZE, NATIVE_SIZE, generate

        # Drawn at the wanted size where that can be done, so that nothing is resampled twice.
        size = min(max(resize or NATIVE_SIZE, MIN_SIZE), MAX_SIZE)
        if name == "embedded":
            return joined([generate(domain, seed, size) for domain in EMBEDDED_DOMAINS], name)
        return generate(name, seed, size)
    if name in ("cifar10", "cifar100"):
        from ccl.data.cifar import LAYOUTS, fetch, is_present, read

        layout = LAYOUTS[name]
        if download and not is_present(layout, root):
            fetch(layout, root, progress)
        return read(layout, root)
    if name in ("imagenet-sub", "imagenet-full"):
        return replace(scan(root / "imagenet"), name=name)
    if name == "folder" or name.startswith("folder:"):
        return scan(root / name.partition(":")[2])
    if name == "shards" or name.startswith("shards:"):
        from ccl.data.shards import read_shards

        return read_shards(name.partition(":")[2], root, progress)
    raise UserError(f"there is no dataset {name!r}{did_you_mean(name, DATASET_NAMES)}")
