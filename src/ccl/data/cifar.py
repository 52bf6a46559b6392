"""CIFAR-10 and CIFAR-100 in their official python layout: fetched, compared with their md5 sums, and read."""

import hashlib
import http.client
import io
import pickle
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ccl.atomic_files import move_into_place
from ccl.data.archives import DAMAGE, copy_member, tar_members
from ccl.data.dataset import Dataset, Progress
from ccl.data.sources import ArraySource
from ccl.errors import UserError

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
_CHUNK = 1 << 20
_TIMEOUT = 30  # seconds without a byte


@dataclass(frozen=True)
class Layout:
    """The files of one of the two sets, with the md5 sums published with the archives."""

    name: str
    folder: str
    members: Mapping[str, str]  # file -> md5: the training parts in order, then the test part, then the names
    prefix: str  # of the keys of labels and names
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
        prefix="",
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
        prefix="fine_",
        url=_ADDRESS + "cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
}


def is_present(layout: Layout, root: Path) -> bool:
    return all((root / layout.folder / member).is_file() for member in layout.members)


def read(layout: Layout, root: Path) -> Dataset:
    """The whole set; a file that is not the official one is refused."""
    folder = root / layout.folder
    if not is_present(layout, root):
        raise UserError(f"{layout.name} not found at {folder}; set --data-root or CCL_DATA, or pass --download")
    *parts, names = (_content(folder / member, md5) for member, md5 in layout.members.items())
    images = [torch.from_numpy(part["data"].reshape(-1, 3, 32, 32).copy()) for part in parts]  # (N, 3, 32, 32) each
    labels = [torch.tensor(part[f"{layout.prefix}labels"]) for part in parts]
    return Dataset(
        name=layout.name,
        train=ArraySource(torch.cat(images[:-1])),
        train_labels=torch.cat(labels[:-1]),
        test=ArraySource(images[-1]),
        test_labels=labels[-1],
        class_names=tuple(names[f"{layout.prefix}label_names"]),
        fingerprint="",
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Containers, numbers, strings and arrays; whatever else a pickle asks for is refused."""

    def find_class(self, module: str, name: str) -> object:
        known = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known[name]


def _content(path: Path, md5: str) -> dict[str, Any]:
    """The dictionary in an official file, whose bytes are compared before they are unpickled."""
    content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{path} is not the official file (md5 differs); delete it and download it again")
    return dict(_ArrayUnpickler(io.BytesIO(content), encoding="latin1").load())  # written by Python 2


def fetch(layout: Layout, root: Path, progress: Progress | None = None) -> None:
    """Download the archive and put its members into the layout's folder below the root.

    All work is done in a temporary folder beside the goal; files move into place by atomic renames, at the very end.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch:
            archive = Path(scratch) / "archive.tar.gz"
            if (md5 := _download(layout.url, archive, progress)) != layout.archive_md5:
                raise UserError(f"what {layout.url} sent has md5 {md5}, not {layout.archive_md5}; try again later")
            unpacked = Path(scratch) / "unpacked"
            _unpack(archive, unpacked, layout)
            (root / layout.folder).mkdir(exist_ok=True)
            for member in layout.members:
                move_into_place(unpacked / member, root / layout.folder / member)
    except UserError:
        raise
    except (*DAMAGE, http.client.HTTPException) as error:  # a URLError is an OSError
        raise UserError(f"can't download {layout.url} to {root}: {' '.join(str(error).split())}") from error


def _download(url: str, goal: Path, progress: Progress | None) -> str:
    """Write the bytes to a file and return their md5."""
    state, done = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, goal.open("wb") as file:
        total = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            state.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return state.hexdigest()


def _unpack(archive: Path, goal: Path, layout: Layout) -> None:
    """Only plain files with the known names are written, under those names: the archive can't choose a path."""
    goal.mkdir()
    with archive.open("rb") as file:
        for member in tar_members(archive, file):
            parent, _, name = member.name.rpartition("/")
            if parent == layout.folder and name in layout.members and member.is_plain:
                copy_member(member, goal / name)
    for name in layout.members:
        if not (goal / name).is_file():
            raise UserError(f"the archive lacks {layout.folder}/{name}")
