"""How an encoder is, before and after a drop: on the images it remembers, and on labelled ones where there are some."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ccl.data import Dataset, ImageSource, load_dataset
from ccl.encoders import Encoder
from ccl.encoders.reading import evaluating, extract
from ccl.errors import UserError
from ccl.evaluation import Reading, fair_voters, fit, knn_accuracy
from ccl.memory import RehearsalMemory
from ccl.views import Viewer

_MOMENT = (-1, -2)  # the views of no step and no selection, the same before and after
_BATCH = 512
_MOST_IMAGES = 4096  # remembered ones that are read, at even distances


def read(encoder: Encoder, viewer: Viewer, source: ImageSource) -> Reading:
    """What an encoder makes of these images: features, and the embeddings of two views."""
    features = extract(encoder, source, viewer)
    first, second = [], []
    with evaluating(encoder):
        batches = torch.split(torch.arange(len(source)), _BATCH)
        for batch in viewer.batches(source, batches, moment=_MOMENT, num_views=2):
            one, other = (encoder(view).float().cpu() for view in batch.views)
            first.append(one)
            second.append(other)
    return Reading(features, torch.cat(first), torch.cat(second))


def remembered(memory: RehearsalMemory, like: ImageSource) -> tuple[ImageSource, Tensor]:
    """The remembered images, each once, in the form of a step's, and the group (step and cluster) of each (N,)."""
    source = memory.source_like(like)
    pairs = torch.stack([memory.steps, memory.clusters], dim=1)  # (M, 2)
    groups = torch.unique(pairs, dim=0, return_inverse=True)[1]  # (M,)
    _, first = _first_of_each(memory.ids)
    if len(first) > _MOST_IMAGES:
        first = first[torch.linspace(0, len(first) - 1, _MOST_IMAGES).round().long()]
    return source.subset(first), groups[first]


def _first_of_each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, and where each stands first, in order: a draw with replacement keeps an image twice."""
    met: dict[int, int] = {}
    for position, number in enumerate(ids.tolist()):
        met.setdefault(number, position)
    return torch.tensor(list(met), dtype=torch.long), torch.tensor(list(met.values()), dtype=torch.long)


@dataclass(frozen=True)
class Accuracy:
    """What a version's frozen features are worth on a labelled folder, in percent."""

    folder: str
    fingerprint: str
    num_classes: int
    num_train: int
    num_test: int
    linear: float
    knn: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, encoder: Encoder, viewer: Viewer, labelled: Dataset) -> Self:
        """Read both parts once; the "cached" linear protocol, and nearest neighbours, as `ccl probe` has them."""
        assert labelled.train_labels is not None
        assert labelled.test is not None
        assert labelled.test_labels is not None
        train, test = extract(encoder, labelled.train, viewer), extract(encoder, labelled.test, viewer)
        linear = fit(train, labelled.train_labels).accuracy(test, labelled.test_labels)
        voters = fair_voters(len(train), len(labelled.class_names))
        knn = knn_accuracy(train, labelled.train_labels, test, labelled.test_labels, voters)
        sizes = len(labelled.class_names), len(train), len(test)
        return cls(labelled.name, labelled.fingerprint, *sizes, linear, knn)


def load_labelled(folder: Path, resize: int | None) -> Dataset:
    """A folder of class folders with a held-out part, in the form that the encoder is used to."""
    if not folder.is_dir():
        raise UserError(f"--probe {folder} is not a folder; it takes one with a folder of images for each class")
    dataset = load_dataset("folder", folder, resize=resize)
    if dataset.train_labels is None or dataset.test is None or len(dataset.class_names) < 2:
        raise UserError(
            f"--probe {folder} needs a folder for each of two classes or more, with 5 images or more in each"
        )
    return dataset
