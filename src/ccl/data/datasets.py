"""Datasets by name."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ccl.data.dataset import Classes, Dataset, Progress, joined, narrowed, numbered, taken_fingerprint
from ccl.data.validation import screened
from ccl.errors import UserError, did_you_mean

EMBEDDED_DOMAINS = ("digits", "capitals", "greek", "symbols", "textures")
DATASET_NAMES = (*EMBEDDED_DOMAINS, "embedded", "cifar10", "cifar100", "folder", "imagenet-sub", "imagenet-full")
_IMAGENET_SUB_CLASSES = 100  # Paper: ImageNet-Sub has 100 classes; the authors' code takes the first, sorted by wnid

__all__ = ["DATASET_NAMES", "EMBEDDED_DOMAINS", "Dataset", "data_root", "load_dataset"]


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
) -> Dataset:
    """A dataset of `DATASET_NAMES` (or "folder:sub/path") below the data root, narrowed and resized as asked.

    Files are decoded once; those that can't be are left out and listed in `skipped`. `seed` matters to embedded sets
    only, which are drawn from it. `progress` hears of downloads and of decoding.
    """
    if resize is not None and resize < 1:
        raise UserError(f"resize must be at least 1 pixel, got {resize}")
    if name == "imagenet-sub" and classes is None:
        classes = _IMAGENET_SUB_CLASSES
    whole = _opener(name)(name, data_root(root), resize, seed, download, progress)
    wanted = numbered(narrowed(whole, classes, images_per_class))
    if resize is None:
        dataset = screened(wanted, progress)
    else:
        from ccl.data.resizing import resized

        dataset = resized(wanted, resize, progress)
    return replace(dataset, fingerprint=taken_fingerprint(wanted, classes, resize, dataset.skipped))


def data_root(root: Path | str | None) -> Path:
    """The folder below which data is looked for: as given, else CCL_DATA, else ./data."""
    return Path(root or os.environ.get("CCL_DATA") or "data").expanduser()


_Opener = Callable[[str, Path, int | None, int, bool, Progress | None], Dataset]


def _opener(name: str) -> _Opener:
    if name in EMBEDDED_DOMAINS or name == "embedded":
        return _open_embedded
    if name in ("cifar10", "cifar100"):
        return _open_cifar
    if name in ("imagenet-sub", "imagenet-full"):
        return _open_imagenet
    if name == "folder" or name.startswith("folder:"):
        return _open_folder
    raise UserError(f"there is no dataset {name!r}{did_you_mean(name, DATASET_NAMES)}")


def _open_embedded(name: str, root: Path, resize: int | None, seed: int, download: bool, progress: object) -> Dataset:
    from ccl.data.embedded import MAX_SIZE, MIN_SIZE, NATIVE_SIZE, generate

    # Drawn at the wanted size where that can be done, so that nothing is resampled twice.
    size = min(max(resize or NATIVE_SIZE, MIN_SIZE), MAX_SIZE)
    if name == "embedded":
        return joined([generate(domain, seed, size) for domain in EMBEDDED_DOMAINS], name)
    return generate(name, seed, size)


def _open_cifar(
    name: str, root: Path, resize: int | None, seed: int, download: bool, progress: Progress | None
) -> Dataset:
    from ccl.data.cifar import LAYOUTS, is_present, read
    from ccl.data.downloads import fetch_archive

    layout = LAYOUTS[name]
    if download and not is_present(layout, root):
        fetch_archive(layout.url, layout.archive_md5, root, layout.folder, layout.members, progress)
    return read(layout, root)


def _open_imagenet(name: str, root: Path, resize: int | None, seed: int, download: bool, progress: object) -> Dataset:
    from ccl.data.folders import scan

    return replace(scan(root / "imagenet"), name=name)


def _open_folder(name: str, root: Path, resize: int | None, seed: int, download: bool, progress: object) -> Dataset:
    from ccl.data.folders import scan

    return scan(root / name.partition(":")[2])
