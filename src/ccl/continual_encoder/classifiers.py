"""Classifiers on a version's features: fitted on a labelled folder, kept in a file, asked about new images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ccl.atomic_files import check_target, write_file
from ccl.continual_encoder.folder import CLASSIFIERS
from ccl.continual_encoder.frozen import FrozenEncoder
from ccl.errors import UserError
from ccl.evaluation import LinearClassifier, ProbeScore, fair_voters
from ccl.evaluation.probes import CACHED_PROTOCOL

SUFFIX = ".safetensors"
_TENSORS = ("weights", "bias", "centre", "scale")

Percent = Annotated[float, Field(ge=0, le=100)]


class Accuracy(BaseModel):
    """On images that took no part in the fitting, in percent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    linear: Percent
    knn: Percent
    num_neighbours: Annotated[int, Field(ge=1)]  # that vote
    num_images: Annotated[int, Field(ge=1)]


class About(BaseModel):
    """The description in a classifier's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    classes: tuple[str, ...]  # row c of the weights stands for classes[c]
    version: int
    fingerprint: str  # of the encoder
    num_features: int
    num_images: int  # fitted on
    protocol: str
    accuracy: Accuracy | None  # None where no images were left to test on


@dataclass(frozen=True)
class Classifier:
    """Logits from features, and what they mean."""

    linear: LinearClassifier
    about: About


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image, and its softmax probability."""

    name: str
    confidence: float


def fitted(
    frozen: FrozenEncoder,
    class_names: Sequence[str],
    rows: Tensor,
    linear: LinearClassifier,
    score: ProbeScore | None = None,
) -> Classifier:
    """What was fitted on rows (N, F) with all that a file says of it; `score` is its worth on held-out ones."""
    accuracy = None
    if score is not None:
        voters = fair_voters(len(rows), len(linear.classes))
        accuracy = Accuracy(linear=score.linear, knn=score.knn, num_neighbours=voters, num_images=score.num_test)
    about = About(
        classes=tuple(class_names[label] for label in linear.classes.tolist()),
        version=frozen.version,
        fingerprint=frozen.fingerprint,
        num_features=rows.shape[1],
        num_images=len(rows),
        protocol=CACHED_PROTOCOL,
        accuracy=accuracy,
    )
    return Classifier(linear, about)


def check_fits(frozen: FrozenEncoder, classifier: Classifier, any_version: bool = False) -> None:
    """Refuse a classifier that was fitted on another encoder's features, or another version's unless `any_version`."""
    about, num_features = classifier.about, frozen.encoder.num_features
    if not any_version:
        advice = f"fit it again with ccl probe, or use --version {about.version}, or insist with --any-version"
        frozen.refuse_other(about.model_dump(), "the classifier", advice)
    if num_features != about.num_features:
        raise UserError(f"the classifier reads {about.num_features} features, and this encoder gives {num_features}")


def predict(frozen: FrozenEncoder, classifier: Classifier, rows: Tensor, any_version: bool = False) -> list[Prediction]:
    """A prediction for each row (N, F) of this encoder's features, if the classifier fits.

    >>> encoder, symbols = ccl.frozen("my-encoder"), ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> classifier = ccl.probe(encoder, symbols).classifier
    >>> [first, *_] = ccl.predict(encoder, classifier, encoder.features(symbols.train))
    >>> first.name in symbols.class_names, 0.5 <= first.confidence <= 1
    (True, True)
    """
    check_fits(frozen, classifier, any_version)
    confidence, best = classifier.linear.logits(rows).softmax(dim=1).max(dim=1)  # (N,), (N,)
    classes = classifier.about.classes
    return [Prediction(classes[c], share) for c, share in zip(best.tolist(), confidence.tolist(), strict=True)]


def save_classifier(classifier: Classifier, path: str | Path) -> None:
    """Write it as safetensors, what it says of itself in the metadata.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> ccl.save_classifier(ccl.probe(ccl.frozen("my-encoder"), symbols).classifier, "classifier.safetensors")
    """
    path = Path(path)
    check_target(path, [SUFFIX], "a classifier")
    tensors = {name: getattr(classifier.linear, name).contiguous() for name in _TENSORS}
    write_file(path, to_bytes(tensors, {"ccl": classifier.about.model_dump_json()}))


def load_classifier(path: str | Path) -> Classifier:
    """A classifier as `save` writes it; anything else is refused, and no code in it runs.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> ccl.save_classifier(ccl.probe(ccl.frozen("my-encoder"), symbols).classifier, "classifier.safetensors")
    >>> ccl.load_classifier("classifier.safetensors").about.classes == symbols.class_names
    True
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = About.model_validate_json((file.metadata() or {}).get("ccl", ""), strict=True)
            if sorted(file.keys()) != sorted(_TENSORS):
                raise ValueError(f"it holds {', '.join(sorted(file.keys()))[:80]}, not {', '.join(_TENSORS)}")
            weights, bias, centre, scale = (file.get_tensor(name).clone() for name in _TENSORS)
        num_classes, num_features = len(about.classes), about.num_features
        shapes = [(num_classes, num_features), (num_classes,), (num_features,), (num_features,)]
        for tensor, shape in zip((weights, bias, centre, scale), shapes, strict=True):
            if tensor.dtype != torch.float32 or tensor.shape != shape or not torch.isfinite(tensor).all():
                raise ValueError(f"a tensor is {tensor.dtype} {tuple(tensor.shape)}")
        if num_classes < 2 or not bool((scale > 0).all()):
            raise ValueError("no classes, or features of no scale")
    except Exception as error:  # safetensors raises many kinds for broken files
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'its metadata'}: {first['msg']}"
        raise UserError(f"{path} is not a classifier by ccl probe: {' '.join(why.split())[:160]}") from error
    return Classifier(LinearClassifier(weights, bias, centre, scale, torch.arange(num_classes)), about)


def default_path(folder: Path, name: str, version: int) -> Path:
    """The default file of a classifier of labelled images of this name."""
    return folder / CLASSIFIERS / f"{name or 'classes'}-v{version}{SUFFIX}"


def newest(folder: Path, frozen: FrozenEncoder, any_version: bool = False) -> Path:
    """The file of the folder's youngest classifier for this version; `any_version`: else of the youngest that fits."""
    own, num_features = frozen.fingerprint, frozen.encoder.num_features
    paths = sorted((folder / CLASSIFIERS).glob(f"[!.]*{SUFFIX}"), key=os.path.getmtime, reverse=True)
    known = {path: load_classifier(path).about for path in paths}
    fitting = [path for path, about in known.items() if about.fingerprint == own]
    if any_version:
        fitting += [path for path, about in known.items() if about.num_features == num_features]
    if fitting:
        return fitting[0]
    others = f", only for others ({', '.join(path.name for path in paths[:5])})" if paths else ""
    raise UserError(
        f"{folder} has no classifier for version {frozen.version}{others}; make one: ccl probe {folder} LABELLED"
    )
