"""Classifiers on a version's features: fitted on labelled images, measured beside baselines, kept in a file, asked."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ccl.atomic_files import check_target, write_file
from ccl.continual_encoder.folder import CLASSIFIERS
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, Progress
from ccl.data import MAX_BAD, BadImage, Dataset, Found, chain
from ccl.data.folders import scan
from ccl.data.ingest import ingest
from ccl.encoders import extract
from ccl.errors import UserError
from ccl.evaluation import (
    LinearClassifier,
    ProbeScore,
    confusion_matrix,
    fair_voters,
    fit,
    pixel_features,
    score_features,
)
from ccl.evaluation.probes import CACHED_PROTOCOL

SUFFIX = ".safetensors"
CONFUSION = "confusion"  # of an accuracy: too large to be kept in every version, so it lies beside
TITLES = {
    "features": "learned features",
    "start": "the start, before the first drop",
    "pixels": "raw pixels (16 px)",
    "hog": "HOG with colours",
}
USE_THE_START = "ccl pin ENCODER 0 uses the start as it is, ccl rollback ENCODER --to 0 returns to it"
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


def check_labelled(folder: Path, dataset: Dataset | None = None) -> None:
    """Refuse a folder without classes or without a part to hold out; where it is not loaded, by its names alone."""
    if not folder.is_dir():
        raise UserError(f"--probe {folder} is not a folder; it takes one with a folder of images for each class")
    dataset = dataset or scan(folder)
    if dataset.train_labels is None or dataset.test is None or len(dataset.class_names) < 2:
        raise UserError(
            f"--probe {folder} needs a folder for each of two classes or more, with 5 images or more in each"
        )


@dataclass(frozen=True)
class ProbeReport:
    """A classifier, and what it and simpler ones are worth on images that took no part in the fitting."""

    classifier: Classifier
    scores: Mapping[str, ProbeScore]  # by "features", "start", "pixels" and "hog"; empty where nothing was held out
    class_names: tuple[str, ...]
    confusion: Tensor | None  # (C, C): test images of class i that the classifier took for class j
    from_weights: bool = False  # whether the start is weights that somebody trained
    skipped: tuple[BadImage, ...] = ()  # left out as not usable

    @property
    def warnings(self) -> list[str]:
        """Warnings about these features, a line each."""
        return warnings(self.scores, self.from_weights)

    @property
    def per_class(self) -> dict[str, float]:
        """Accuracy of each class that has test images, in percent."""
        if self.confusion is None:
            return {}
        shares = 100 * self.confusion.diagonal() / self.confusion.sum(dim=1)  # (C,), nan for a class without any
        return {name: share for name, share in zip(self.class_names, shares.tolist(), strict=True) if share == share}


def warnings(scores: Mapping[str, ProbeScore], from_weights: bool = False) -> list[str]:
    """A line for each baseline that the learned features do not clearly beat; for weights as a start also advice."""
    if "features" not in scores:
        return []
    found, own = [], scores["features"]
    for name in ("pixels", "hog", "start"):
        if name in scores and not own.is_clearly_above(scores[name]):
            how = "do not beat" if own.linear <= scores[name].linear else "are not clearly better than"
            mine, other = (f"{score.linear:.1f} ± {score.linear_error:.1f} %" for score in (own, scores[name]))
            found.append(f"the learned features {how} {TITLES[name]}: {mine} against {other}, linear")
    if from_weights and "start" in scores and own.linear <= scores["start"].linear:
        found.append(f"on these labelled images the start, left frozen, does as well or better; {USE_THE_START}")
    return found


def probe(
    frozen: FrozenEncoder,
    dataset: Dataset,
    start: FrozenEncoder | None = None,
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
) -> ProbeReport:
    """Fit a classifier on the training part and measure it on the test part; with a start, the baselines too.

    Each image is opened once; more than `max_bad` percent of unusable ones are refused.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> report = ccl.probe(ccl.frozen("my-encoder"), symbols)
    >>> report.classifier.about.num_images, 0 <= report.scores["features"].linear <= 100
    (6, True)
    """
    if dataset.train_labels is None:
        raise UserError(f"{dataset.name} has no labels: put the images of each class in a folder of the class's name")
    readers = {"features": frozen}
    has_baselines = start is not None and dataset.test is not None
    if start is not None and has_baselines and frozen.version != start.version:  # the start has no other beside it
        readers["start"] = start
    read = _read_labelled(readers, dataset, has_baselines, progress, max_bad)
    train, labels = read.rows["features"][read.is_train], read.labels[read.is_train]
    if len(torch.unique(labels)) < 2:
        raise UserError(f"{dataset.name} has one class only; a classifier needs two")
    names = dataset.class_names
    if read.is_train.all():
        return ProbeReport(fitted(frozen, names, train, fit(train, labels)), {}, names, None, skipped=read.skipped)
    found = {name: read.score(name) for name in read.rows}
    score, linear = found["features"]
    classifier = fitted(frozen, names, train, linear, score)
    scores = {name: score for name, (score, _) in found.items()}
    from_weights = start is not None and start.architecture.weights is not None
    return ProbeReport(classifier, scores, names, read.confusion(linear, len(names)), from_weights, read.skipped)


@dataclass(frozen=True)
class _Labelled:
    """Features of both parts of a labelled dataset."""

    rows: dict[str, Tensor]  # (N, F) by what read them
    labels: Tensor  # (N,)
    is_train: Tensor  # (N,)
    skipped: tuple[BadImage, ...]

    def score(self, name: str) -> tuple[ProbeScore, LinearClassifier]:
        """Probes on these rows."""
        rows, train, test = self.rows[name], self.is_train, ~self.is_train
        return score_features(rows[train], self.labels[train], rows[test], self.labels[test])

    def confusion(self, linear: LinearClassifier, num_classes: int) -> Tensor:
        """(C, C): test images of class i that a classifier on the features took for class j."""
        predicted = linear.predict(self.rows["features"][~self.is_train])
        return confusion_matrix(self.labels[~self.is_train], predicted, num_classes)


def _read_labelled(
    readers: Mapping[str, FrozenEncoder],
    dataset: Dataset,
    has_pixels: bool,
    progress: Progress | None = None,
    max_bad: float = MAX_BAD,
) -> _Labelled:
    """Open each image once, for all readers and, with `has_pixels`, for raw pixels and HOG."""
    assert dataset.train_labels is not None
    source, labels = dataset.train, dataset.train_labels
    if dataset.test is not None and dataset.test_labels is not None:
        source, labels = chain([source, dataset.test]), torch.cat([labels, dataset.test_labels])
    rows: defaultdict[str, list[Tensor]] = defaultdict(list)
    positions, skipped = list[int](), list[BadImage]()
    for chunk in ingest(Found(source), readers["features"].resize, progress=progress, max_bad=max_bad):
        positions += chunk.positions
        skipped += chunk.bad
        if len(chunk.source):
            for name, frozen in readers.items():
                rows[name].append(extract(frozen.encoder, chunk.source, frozen.viewer))
            for name, some in pixel_features(chunk.source).items() if has_pixels else ():
                rows[name].append(some)
    if not positions:
        raise UserError(f"none of the files of {dataset.name} is a usable image")
    there = torch.tensor(positions)
    whole = {name: torch.cat(some) for name, some in rows.items()}
    return _Labelled(whole, labels[there], there < len(dataset.train), tuple(skipped))


def labelled_accuracy(
    after: FrozenEncoder,
    labelled: Dataset,
    known: Mapping[str, Any] | None,
    before: FrozenEncoder | None,
    start: FrozenEncoder,
) -> dict[str, Any]:
    """On labelled images, in percent, beside what it was before and what needs no learning.

    `known` is what the last drop found: on the same images it is not measured again.
    """
    if known is not None and known["fingerprint"] == labelled.fingerprint:
        read = _read_labelled({"features": after}, labelled, has_pixels=False)
        was, beside = known, known["beside"]
    else:
        readers = {"features": after, "start": start} | ({} if before is None else {"before": before})
        read = _read_labelled(readers, labelled, has_pixels=True)
        others = {name: read.score(name)[0] for name in read.rows if name != "features"}
        beside = {name: {"linear": other.linear, "knn": other.knn} for name, other in others.items()}
        was = beside.pop("before", {})  # of the first drop there is none
    score, linear = read.score("features")
    names = list(labelled.class_names)
    return {
        "folder": labelled.name,
        "fingerprint": labelled.fingerprint,
        "num_classes": len(names),
        "num_train": int(read.is_train.sum()),
        "num_test": score.num_test,
        "linear": score.linear,
        "knn": score.knn,
        CONFUSION: {"classes": names, "counts": read.confusion(linear, len(names)).tolist()},
        "linear_before": was.get("linear"),
        "knn_before": was.get("knn"),
        "beside": beside,
    }


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
    about = classifier.about.model_dump_json()
    write_file(path, to_bytes(tensors, {"ccl": about, "sha256": _digest(about, tensors)}))


def _digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    state = hashlib.sha256(about.encode())
    for name in _TENSORS:
        state.update(tensors[name].contiguous().numpy().tobytes())
    return state.hexdigest()


def load_classifier(path: str | Path) -> Classifier:
    """A classifier as `save` writes it; anything else is refused, and no code in it runs.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> ccl.save_classifier(ccl.probe(ccl.frozen("my-encoder"), symbols).classifier, "classifier.safetensors")
    >>> ccl.load_classifier("classifier.safetensors").about.classes == symbols.class_names
    True
    """
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            about = About.model_validate_json(said.get("ccl", ""), strict=True)
            if sorted(file.keys()) != sorted(_TENSORS):
                raise ValueError(f"it holds {', '.join(sorted(file.keys()))[:80]}, not {', '.join(_TENSORS)}")
            tensors = {name: file.get_tensor(name).clone() for name in _TENSORS}
        if "sha256" in said and said["sha256"] != _digest(said["ccl"], tensors):  # older ones have none
            raise ValueError("its SHA-256 is not its own")
        weights, bias, centre, scale = tensors.values()
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
