"""The judgement of a drop, and of features by a probe beside baselines that need no learning.

Without labels, recognition stands in for accuracy: how often an image is recognised in another view among up to 256.
The views are not those of the training, but the encoder has trained on the images, the new ones and those it rehearses.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccl.continual_encoder.classifiers import Classifier, fitted
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.frozen import FrozenEncoder, Progress, frozen_start, thawed
from ccl.data import MAX_BAD, BadImage, Dataset, Found, ImageSource, chain, evenly_spaced
from ccl.data.folders import scan
from ccl.data.ingest import ingest
from ccl.encoders import evaluating, extract
from ccl.errors import UserError
from ccl.evaluation import (
    Drift,
    LinearClassifier,
    ProbeScore,
    Reading,
    confusion_matrix,
    fit,
    pixel_features,
    recognition,
    score_features,
)
from ccl.evaluation.drift import FEWEST_ROWS
from ccl.memory import RehearsalMemory
from ccl.settings import Settings
from ccl.training import Learner
from ccl.training.checkpoint import Checkpoint
from ccl.views import Viewer

CONFUSION = "confusion"  # of an accuracy: too large to be kept in every version, so it lies beside
MOMENT = (-1, -2)  # the views of no step and no selection, the same before and after
TITLES = {
    "features": "learned features",
    "start": "the start, before the first drop",
    "pixels": "raw pixels (16 px)",
    "hog": "HOG with colours",
}
_BATCH = 512
_MOST_REMEMBERED = 4096  # remembered images that are read, at even distances
_MOST_RECOGNISED = 256  # at even distances: enough for a change of some points, and cheap beside the learning
# Conventions of a verdict. On one seed of the demo, for 200 images in the middle of the first step's clusters, a step
# of CCL changed 20 to 25 % of their neighbours and took up to 3.8 points of agreement, a step of Finetuning 26 to 44 %
# and up to 13.5 points. Groups are those that the encoder before found, which favours it: over five drops of CIFAR-100
# agreement fell by up to 9.7 points in steps after which a probe of the old classes was better than before.
KEPT_OVERLAP = 0.5  # of the neighbours must stay
LOST_OVERLAP = 0.2  # or more must stay where no groups can speak; chance alone leaves up to 0.1
LOST_POINTS = 12.0  # of group agreement, in percentage points
USE_THE_START = "ccl pin ENCODER 0 uses the start as it is, ccl rollback ENCODER --to 0 returns to it"


def check_labelled(folder: Path, dataset: Dataset | None = None) -> None:
    """Refuse a folder without classes or without a part to hold out; where it is not loaded, by its names alone."""
    if not folder.is_dir():
        raise UserError(f"--probe {folder} is not a folder; it takes one with a folder of images for each class")
    dataset = dataset or scan(folder)
    if dataset.train_labels is None or dataset.test is None or len(dataset.class_names) < 2:
        raise UserError(
            f"--probe {folder} needs a folder for each of two classes or more, with 5 images or more in each"
        )


def judged(
    folder: EncoderFolder,
    settings: Settings,
    parent: Checkpoint | None,
    learner: Learner,
    viewer: Viewer,
    images: ImageSource,
    labelled: Dataset | None,
    past: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Health, verdict, what was gained and lost, and accuracy on labelled images, as JSON values."""
    before = None if parent is None else thawed(folder, parent)
    # Of the first drop on weights, the version before is the start.
    start = before if before is not None and before.version == 0 else frozen_start(folder.path)
    # What was remembered then, also what was let go since; where nothing was, what is remembered now.
    memory = learner.memory if parent is None else folder.memory_of(parent.number)
    has_old = parent is not None and len(memory) > 1
    memory = memory if len(memory) > 1 else learner.memory
    compared = _remembered(memory, images) if len(memory) > 1 else None
    after = FrozenEncoder(learner.product, viewer, settings.encoder, len(past), settings.data.resize)
    drift = accuracy = None
    if compared is not None:
        was = None if before is None else _read(before, compared[0])
        first = extract(start.encoder, compared[0], start.viewer)  # (N, F)
        drift = Drift.of(was, _read(after, compared[0]), compared[1], first)
    readers = {"start": start, "before": before, "after": after}
    gains = {
        "from_weights": settings.encoder.weights is not None,
        "has_past": parent is not None,
        "new": recognised(readers, images),
        "old": recognised(readers, compared[0]) if compared is not None and has_old else None,
    }
    if labelled is not None:
        known = past[-1]["accuracy"] if past else None
        accuracy = labelled_accuracy(after, labelled, known, before, start)
    for encoder in (before, start):
        if encoder is not None:
            encoder.close()
    return {
        "health": None if drift is None else drift.as_dict(),
        "verdict": verdict_of(drift, is_of_new=parent is not None and not has_old),
        "gains": gains,
        "accuracy": accuracy,
    }


def verdict_of(drift: Drift | None, is_of_new: bool = False) -> str:
    """The verdict on a drop: its kind in one word, then one or two sentences.

    `is_of_new`: nothing old was remembered, so that the drop's own images were compared.
    """
    if drift is None:
        return "nothing is remembered, so nothing can be compared"
    if drift.reasons:
        return f"collapsed: {'; '.join(drift.reasons)}. Don't use this version."
    overlap, (then, now) = drift.neighbour_overlap, drift.group_agreement
    share = f"{100 * overlap:.0f} %"
    if is_of_new and not math.isnan(overlap):
        return f"nothing old was remembered, so only new images can be compared: they keep {share} of their neighbours."
    if drift.num_rows < FEWEST_ROWS:
        images = "1 known image" if drift.num_rows == 1 else f"{drift.num_rows} known images"
        return f"unclear: {images} are too few to compare; at least {FEWEST_ROWS} are needed."
    agreement = ""
    if not math.isnan(now) and not math.isnan(drift.start_agreement):  # alone it would look like an accuracy
        was = "" if math.isnan(then) else f"{then:.0f} % before, "
        start = f"{drift.start_agreement:.0f} % at the start"
        agreement = f" {now:.0f} % lie among images of their own group ({was}{start})."
    if math.isnan(overlap):
        return f"first: nothing older can be compared.{agreement}"
    changed = f"neighbours of old images changed for {100 * (1 - overlap):.0f} %."
    if now < then - LOST_POINTS or (math.isnan(now) and overlap < LOST_OVERLAP):
        return f"lost: {changed}{agreement}"
    if overlap < KEPT_OVERLAP:
        return f"changed: {changed}{agreement} Fit anew what was built on the old features."
    return f"kept: old images still have {share} of their neighbours.{agreement}"


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


def _read(frozen: FrozenEncoder, source: ImageSource) -> Reading:
    """Features and the embeddings of two views of these images, by an encoder."""
    (_, first), (_, second) = two_views(frozen, source)
    return Reading(extract(frozen.encoder, source, frozen.viewer), first, second)


def _remembered(memory: RehearsalMemory, like: ImageSource) -> tuple[ImageSource, Tensor]:
    """The remembered images, each once, in the form of a step's, and the group (step and cluster) of each (N,)."""
    pairs = torch.stack([memory.steps, memory.clusters], dim=1)  # (M, 2)
    groups = torch.unique(pairs, dim=0, return_inverse=True)[1]  # (M,)
    places: dict[int, int] = {}  # of each id the first: a draw with replacement keeps an image twice
    for position, number in enumerate(memory.ids.tolist()):
        places.setdefault(number, position)
    first = torch.tensor(list(places.values()))
    if len(first) > _MOST_REMEMBERED:
        first = first[evenly_spaced(len(first), _MOST_REMEMBERED)]
    return memory.source_like(like).subset(first), groups[first]


def two_views(frozen: FrozenEncoder, source: ImageSource) -> list[tuple[Tensor, Tensor]]:
    """Features (N, F) and unit embeddings (N, D) of two views of every image."""
    found: list[list[tuple[Tensor, Tensor]]] = []
    with evaluating(frozen.encoder):
        batches = torch.split(torch.arange(len(source)), _BATCH)
        for batch in frozen.viewer.batches(source, batches, moment=MOMENT, num_views=2):
            embedded = [frozen.encoder.embed(view) for view in batch.views]
            found.append([(one.features.float().cpu(), one.unit.float().cpu()) for one in embedded])
    features, units = ([torch.cat([batch[view][part] for batch in found]) for view in range(2)] for part in range(2))
    return list(zip(features, units, strict=True))


def recognised(readers: Mapping[str, FrozenEncoder | None], source: ImageSource) -> dict[str, Any] | None:
    """The percentage for each encoder ("start", "before", "after"), as JSON values; None for fewer than two images.

    An encoder that is there twice is read once; None stands for one that does not exist.
    """
    if len(source) < 2:
        return None
    if len(source) > _MOST_RECOGNISED:
        source = source.subset(evenly_spaced(len(source), _MOST_RECOGNISED))
    known: dict[int, float] = {}
    found: dict[str, Any] = {"num_images": len(source)}
    for name, reader in readers.items():
        if reader is not None and id(reader) not in known:
            (first, _), (second, _) = two_views(reader, source)
            known[id(reader)] = recognition(first, second)
        value = math.nan if reader is None else known[id(reader)]
        found[name] = value if math.isfinite(value) else None
    return found


def lost_too_much(step: Mapping[str, Any], allowed: float | None) -> str:
    """Why a version may not become current, in words; empty where it may."""
    accuracy, health = step["accuracy"], step["health"]
    if accuracy is not None:
        what, before, after = "accuracy on the labelled images", accuracy["linear_before"], accuracy["linear"]
    elif health is not None:
        what = "agreement of remembered images with their groups"
        before, after = health["group_agreement"]
    else:
        return ""
    if allowed is None or before is None or after is None or before - after <= allowed:
        return ""
    lost = before - after
    return f"{what} fell from {before:.1f} to {after:.1f} %, by {lost:.1f} points, and {allowed:g} are allowed"


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
