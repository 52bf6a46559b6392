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

import numpy as np
import torch

from ccl.atomic_files import move_into_place
from ccl.data.archives import DAMAGE, copy_member, tar_members
from ccl.data.dataset import Dataset, Progress
from ccl.data.image_sources import ArraySource
from ccl.errors import UserError

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
_CHUNK = 1 << 20
_TIMEOUT = 30  # seconds without a byte


@dataclass(frozen=True)
class Layout:
    """The files of one of the two sets, with the md5 sums of the official ones."""

    name: str
    folder: str
    members: Mapping[str, str]  # file -> md5: the training parts in order, then the test part, then the names
    prefix: str  # of the keys of labels and names
    url: str


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
    ),
}


def is_present(layout: Layout, root: Path) -> bool:
    return all((root / layout.folder / member).is_file() for member in layout.members)


def read(layout: Layout, root: Path) -> Dataset:
    """The whole set; a file that is not the official one is refused."""
    folder = root / layout.folder
    if not is_present(layout, root):
        raise UserError(f"{layout.name} not found at {folder}; set --data-root or CCL_DATA, or pass --download")
    parts = []
    for member, md5 in layout.members.items():
        if _md5(content := (folder / member).read_bytes()) != md5:
            raise UserError(f"{folder / member} is not the official file (md5 differs); download it again")
        parts.append(_ArrayUnpickler(io.BytesIO(content), encoding="latin1").load())  # written by Python 2
    *parts, names = parts
    images = [torch.from_numpy(part.pop("data").reshape(-1, 3, 32, 32).copy()) for part in parts]  # (N, 3, 32, 32) each
    labels = [torch.tensor(part[f"{layout.prefix}labels"]) for part in parts]
    train, test = ArraySource(torch.cat(images[:-1]) if len(images) > 2 else images[0]), ArraySource(images[-1])
    class_names = tuple(names[f"{layout.prefix}label_names"])
    return Dataset(layout.name, train, torch.cat(labels[:-1]), test, labels[-1], class_names, fingerprint="")


class _ArrayUnpickler(pickle.Unpickler):
    """Containers, numbers, strings and arrays; whatever else a pickle asks for is refused."""

    def find_class(self, module: str, name: str) -> object:
        known = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known[name]


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def fetch(layout: Layout, root: Path, progress: Progress | None = None) -> None:
    """Download the archive and put its official files into the layout's folder below the root: all of them, or none.

    Only plain files with the known names are written, under those names: the archive can't choose a path.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
            archive, goal = Path(folder) / "archive.tar.gz", root / layout.folder
            with urllib.request.urlopen(layout.url, timeout=_TIMEOUT) as answer, archive.open("wb") as file:
                total = int(answer.headers.get("Content-Length") or 0)
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    if progress is not None:
                        progress(file.tell(), total)
            with archive.open("rb") as file:
                for member in tar_members(archive, file):
                    parent, _, name = member.name.rpartition("/")
                    if parent == layout.folder and name in layout.members and member.is_plain:
                        copy_member(member, Path(folder) / name)
            for name, md5 in layout.members.items():
                path = Path(folder) / name
                if not path.is_file() or _md5(path.read_bytes()) != md5:
                    raise UserError(f"it has no official {layout.folder}/{name}; try again later")
            goal.mkdir(exist_ok=True)
            for name in layout.members:
                move_into_place(Path(folder) / name, goal / name)
    except (*DAMAGE, http.client.HTTPException) as error:  # a URLError is an OSError
        raise UserError(f"can't download {layout.url} to {root}: {' '.join(str(error).split())}") from error
