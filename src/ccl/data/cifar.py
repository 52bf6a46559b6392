"""CIFAR-10 and CIFAR-100 in their official python layout, read without running what their pickles ask for."""

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.data.dataset import Dataset
from ccl.data.sources import ArraySource
from ccl.errors import UserError

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Layout:
    """Where one of the two sets keeps its things; md5 sums as published with the archives."""

    name: str
    folder: str
    members: dict[str, str]  # file -> md5
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    label_key: str
    names_key: str
    url: str
    archive_md5: str


LAYOUTS = {
    "cifar10": Layout(
        name="cifar10",
        folder="cifar-10-batches-py",
        members={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        train_files=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
        test_file="test_batch",
        meta_file="batches.meta",
        label_key="labels",
        names_key="label_names",
        url=_ADDRESS + "cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
    ),
    "cifar100": Layout(
        name="cifar100",
        folder="cifar-100-python",
        members={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
        train_files=("train",),
        test_file="test",
        meta_file="meta",
        label_key="fine_labels",
        names_key="fine_label_names",
        url=_ADDRESS + "cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
}


def is_present(layout: Layout, root: Path) -> bool:
    return all((root / layout.folder / member).is_file() for member in layout.members)


def read(layout: Layout, root: Path) -> Dataset:
    """The whole set, after the md5 sum of every file has been compared."""
    folder = root / layout.folder
    if not is_present(layout, root):
        raise UserError(f"{layout.name} not found at {folder}; set --data-root or CCL_DATA, or pass --download")
    for member, expected in layout.members.items():
        with (folder / member).open("rb") as file:
            if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != expected:
                raise UserError(
                    f"{folder / member} is not the official file (md5 differs); delete it and download it again"
                )
    train = [_images_and_labels(folder / member, layout.label_key) for member in layout.train_files]
    test_images, test_labels = _images_and_labels(folder / layout.test_file, layout.label_key)
    return Dataset(
        name=layout.name,
        train=ArraySource(torch.cat([images for images, _ in train])),
        train_labels=torch.cat([labels for _, labels in train]),
        test=ArraySource(test_images),
        test_labels=test_labels,
        class_names=tuple(load_plain_pickle(folder / layout.meta_file)[layout.names_key]),
        fingerprint="",
    )


def _images_and_labels(path: Path, label_key: str) -> tuple[Tensor, Tensor]:
    """uint8 (N, 3, 32, 32) and int64 (N,), of a file whose md5 sum was compared."""
    content = load_plain_pickle(path)
    # A copy, because the pickle's bytes are read-only.
    images = torch.from_numpy(content["data"].pixels.reshape(-1, 3, 32, 32).copy())
    return images, torch.tensor(content[label_key], dtype=torch.int64)


class _Kind:
    """Stands in for numpy.dtype: remembers its code, ignores its state."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands in for numpy.ndarray: takes bytes only.

    numpy's own reconstruction trusts the pickled dtype, whose flags can turn raw bytes into object pointers.
    """

    def __init__(self, *_: object) -> None:
        self.pixels: NDArray[np.uint8] = np.empty((0,), dtype=np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes | str]) -> None:
        _, shape, kind, is_fortran, raw = state
        content = raw.encode("latin1") if isinstance(raw, str) else raw  # str: written by Python 2
        if kind.code != "u1":
            raise pickle.UnpicklingError("an array that is not of bytes")
        self.pixels = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if is_fortran else "C")


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers, strings and byte arrays; every other name that a pickle asks for is refused."""

    _allowed = {  # noqa: RUF012 -- a constant
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): "ndarray",
        ("numpy", "dtype"): _Kind,
    }

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self._allowed[module, name]


def load_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle; anything that would run code, or is damaged, is a UserError."""
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise UserError(f"{path} can't be read safely: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a dictionary")
    return content
