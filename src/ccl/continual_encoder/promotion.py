"""What a drop did to an encoder, on images it remembers and on labelled ones, and whether that is too much."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccl.continual_encoder.encoder_folder import EncoderFolder
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, start_encoder, thawed
from ccl.continual_encoder.gains import recognised, two_views
from ccl.continual_encoder.probing import baselines
from ccl.data import Dataset, ImageSource, load_dataset
from ccl.data.folders import scan
from ccl.encoders import Encoder
from ccl.encoders.feature_extraction import extract
from ccl.errors import UserError
from ccl.evaluation import Drift, Reading, confusion_matrix, score_features
from ccl.memory import RehearsalMemory
from ccl.settings import Settings
from ccl.training import Learner
from ccl.training.checkpoint import Checkpoint
from ccl.views import Viewer

CONFUSION = "confusion"  # of an accuracy: too large to be kept in every version, so it lies beside
_MOST_IMAGES = 4096  # remembered ones that are read, at even distances


def check_labelled(folder: Path) -> None:
    """Refuse, before any image is read, a folder without classes or without a part to hold out."""
    if not folder.is_dir():
        raise UserError(f"--probe {folder} is not a folder; it takes one with a folder of images for each class")
    _refuse_unlabelled(folder, scan(folder))


def load_labelled(folder: Path, resize: int | None, max_bad: float) -> Dataset:
    """A folder of class folders with a held-out part, in the form that the encoder is used to."""
    dataset = load_dataset("folder", folder, resize=resize, max_bad=max_bad)
    _refuse_unlabelled(folder, dataset)
    return dataset


def _refuse_unlabelled(folder: Path, dataset: Dataset) -> None:
    if dataset.train_labels is None or dataset.test is None or len(dataset.class_names) < 2:
        raise UserError(
            f"--probe {folder} needs a folder for each of two classes or more, with 5 images or more in each"
        )


def judged(
    state: EncoderFolder,
    settings: Settings,
    parent: Checkpoint | None,
    learner: Learner,
    viewer: Viewer,
    images: ImageSource,
    labelled: Dataset | None,
    past: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Health, verdict, what was gained and lost, and accuracy on labelled images, as JSON values."""
    before = None if parent is None else thawed(settings, parent)
    # Of the first drop on weights, the version before is the start.
    start = before if before is not None and before.version == 0 else start_encoder(state, settings)
    # What was remembered then, also what was let go since; where nothing was, what is remembered now.
    memory = learner.memory if parent is None else state.memory_of(parent.number)
    has_old = parent is not None and len(memory) > 1
    memory = memory if len(memory) > 1 else learner.memory
    compared = _remembered(memory, images) if len(memory) > 1 else None
    drift = accuracy = None
    if compared is not None:
        was = None if before is None else _read(before.encoder, before.viewer, compared[0])
        first = extract(start.encoder, compared[0], start.viewer)  # (N, F)
        drift = Drift.of(was, _read(learner.product, viewer, compared[0]), compared[1], first)
    readers = {
        "start": (start.encoder, start.viewer),
        "before": None if before is None else (before.encoder, before.viewer),
        "after": (learner.product, viewer),
    }
    gains = {
        "from_weights": settings.encoder.weights is not None,
        "has_past": parent is not None,
        "new": recognised(readers, images),
        "old": recognised(readers, compared[0]) if compared is not None and has_old else None,
    }
    if labelled is not None:
        known = past[-1]["accuracy"] if past else None
        accuracy = _accuracy(learner.product, viewer, labelled, known, before, start)
    for encoder in (before, start):
        if encoder is not None:
            encoder.close()
    return {
        "health": None if drift is None else drift.as_dict(),
        "verdict": verdict_of(drift, is_of_new=parent is not None and not has_old),
        "gains": gains,
        "accuracy": accuracy,
    }


def verdict_of(drift: Drift | None, is_of_new: bool) -> str:
    """In words; `is_of_new`: nothing old was remembered, so that the drop's own images were compared."""
    if drift is None:
        return "nothing is remembered, so nothing can be compared"
    if is_of_new and not drift.reasons and drift.neighbour_overlap == drift.neighbour_overlap:
        share = f"{100 * drift.neighbour_overlap:.0f} %"
        return f"nothing old was remembered, so only new images can be compared: they keep {share} of their neighbours."
    return drift.verdict


def _accuracy(
    encoder: Encoder,
    viewer: Viewer,
    labelled: Dataset,
    known: Mapping[str, Any] | None,
    before: FrozenEncoder | None,
    start: FrozenEncoder,
) -> dict[str, Any]:
    """On labelled images, beside what it was before and what needs no learning; `known` is what the last drop found."""
    if known is not None and known["fingerprint"] != labelled.fingerprint:
        known = None
    found = measured_accuracy(encoder, viewer, labelled)
    was_worth = known or {}
    if known is None and before is not None:
        was_worth = measured_accuracy(before.encoder, before.viewer, labelled)
    found |= {f"{probe}_before": was_worth.get(probe) for probe in ("linear", "knn")}
    return found | {"beside": (known or {}).get("beside") or _beside(labelled, start)}


def _read(encoder: Encoder, viewer: Viewer, source: ImageSource) -> Reading:
    """What an encoder makes of these images: features, and the embeddings of two views."""
    features = extract(encoder, source, viewer)
    (_, first), (_, second) = two_views(encoder, viewer, source)
    return Reading(features, first, second)


def _remembered(memory: RehearsalMemory, like: ImageSource) -> tuple[ImageSource, Tensor]:
    """The remembered images, each once, in the form of a step's, and the group (step and cluster) of each (N,)."""
    pairs = torch.stack([memory.steps, memory.clusters], dim=1)  # (M, 2)
    groups = torch.unique(pairs, dim=0, return_inverse=True)[1]  # (M,)
    places: dict[int, int] = {}  # of each id the first: a draw with replacement keeps an image twice
    for position, number in enumerate(memory.ids.tolist()):
        places.setdefault(number, position)
    first = torch.tensor(list(places.values()))
    if len(first) > _MOST_IMAGES:
        first = first[torch.linspace(0, len(first) - 1, _MOST_IMAGES).round().long()]
    return memory.source_like(like).subset(first), groups[first]


def _beside(labelled: Dataset, start: FrozenEncoder) -> dict[str, dict[str, float]]:
    """What needs no learning, on the same images: it stays the same from drop to drop."""
    found = baselines(labelled, start)
    return {name: {"linear": score.linear, "knn": score.knn} for name, score in found.items()}


def measured_accuracy(encoder: Encoder, viewer: Viewer, labelled: Dataset) -> dict[str, Any]:
    """What frozen features are worth on labelled images, in percent, measured as `ccl probe` does."""
    assert labelled.train_labels is not None
    assert labelled.test is not None
    assert labelled.test_labels is not None
    train, test = extract(encoder, labelled.train, viewer), extract(encoder, labelled.test, viewer)
    score, linear = score_features(train, labelled.train_labels, test, labelled.test_labels)
    confusion = confusion_matrix(labelled.test_labels, linear.predict(test), len(labelled.class_names))
    return {
        "folder": labelled.name,
        "fingerprint": labelled.fingerprint,
        "num_classes": len(labelled.class_names),
        "num_train": len(train),
        "num_test": len(test),
        "linear": score.linear,
        "knn": score.knn,
        CONFUSION: {"classes": list(labelled.class_names), "counts": confusion.tolist()},
    }


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
