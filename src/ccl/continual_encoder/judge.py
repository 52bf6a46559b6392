"""The judgement of a drop: what it changed, gained and lost, and whether its version may become current.

Without labels, recognition stands in for accuracy: how often an image is recognised in another view among up to 256.
The views are not those of the training, but the encoder has trained on the images, the new ones and those it rehearses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, started, thawed
from ccl.continual_encoder.ledger import COLLAPSED
from ccl.continual_encoder.probe_classifiers import labelled_accuracy
from ccl.data import Dataset, ImageSource, evenly_spaced
from ccl.encoders import evaluating, extract
from ccl.evaluation import Drift, Reading, recognition
from ccl.evaluation.drift import FEWEST_ROWS, NOT_FINITE, collapse
from ccl.evaluation.health import effective_rank
from ccl.memory import RehearsalMemory
from ccl.settings import Settings
from ccl.training import Learner, Observer
from ccl.training.checkpoint import Checkpoint
from ccl.views import Viewer

MOMENT = (-1, -2)  # the views of no step and no selection, the same before and after
_BATCH = 512
_MOST_REMEMBERED = 4096  # remembered images that are read, at even distances
_SHARE_OF_LOOKS = 0.02  # of the time of the epochs, that looking for collapse may take
_MOST_RECOGNISED = 256  # at even distances: enough for a change of some points, and cheap beside the learning
# Conventions of a verdict. On one seed of the demo, for 200 images in the middle of the first step's clusters, a step
# of CCL changed 20 to 25 % of their neighbours and took up to 3.8 points of agreement, a step of Finetuning 26 to 44 %
# and up to 13.5 points. Groups are those that the encoder before found, which favours it: over five drops of CIFAR-100
# agreement fell by up to 9.7 points in steps after which a probe of the old classes was better than before.
KEPT_OVERLAP = 0.5  # of the neighbours must stay
LOST_OVERLAP = 0.2  # or more must stay where no groups can speak; chance alone leaves up to 0.1
COLLAPSED_SHARE = 0.25  # of the directions at the start: with fewer, what looks collapsed is
LOST_POINTS = 12.0  # of group agreement, in percentage points


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
    start = before if before is not None and before.version == 0 else started(folder, settings)
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
    found = [f"{name} contains nan or infinity" for name in not_finite(learner)][:1] + faults(
        after, lambda: start, images
    )
    for encoder in (before, start):
        if encoder is not None:
            encoder.close()
    return {
        "health": None if drift is None else drift.as_dict(),
        "verdict": verdict_of(drift, is_of_new=parent is not None and not has_old),
        "gains": gains,
        "accuracy": accuracy,
        "faults": found,
    }


def verdict_of(drift: Drift | None, is_of_new: bool = False) -> str:
    """The verdict on a drop: its kind in one word, then one or two sentences.

    `is_of_new`: nothing old was remembered, so that the drop's own images were compared.
    """
    if drift is None:
        return "nothing is remembered, so nothing can be compared"
    if drift.reasons:
        return f"{COLLAPSED}: {'; '.join(drift.reasons)}. Don't use this version."
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


def not_finite(learner: Learner) -> list[str]:
    """The names of tensors that hold a value that is not finite."""
    return [name for name, value in learner.state_dict().items() if not torch.isfinite(value).all()]


def faults(
    now: FrozenEncoder, started_from: Callable[[], FrozenEncoder], source: ImageSource, most: int = _MOST_RECOGNISED
) -> list[str]:
    """Why its features of these images are of no use, in words: not finite, or collapsed where the start's are not.

    Fresh small networks put all images near each other: what has lost little since is not taken for collapsed.
    """
    if len(source) < 2:
        return []
    some = source.subset(evenly_spaced(len(source), min(len(source), most)))
    found = collapse(reading := _read(now, some))
    if found and NOT_FINITE not in found:
        before = _read(started_from(), some)
        spread = effective_rank(before.first) - 1  # directions beyond the one that a point has
        if collapse(before) or effective_rank(reading.first) - 1 > COLLAPSED_SHARE * spread:
            return []
    return [reason if reason == NOT_FINITE else f"{COLLAPSED}: {reason}" for reason in found]


class CollapsedError(Exception):
    """The features have collapsed in the middle of a drop."""


class CollapseWatch(Observer):
    """Looks at some of a drop's new images after its epochs, once a quarter of them is over, and before the last."""

    def __init__(
        self, folder: EncoderFolder, settings: Settings, learner: Learner, viewer: Viewer, images: ImageSource
    ) -> None:
        self._folder, self._settings, self._learner, self._viewer = folder, settings, learner, viewer
        self._images, self._most = images, max(2 * FEWEST_ROWS, min(_MOST_RECOGNISED, len(images) // 48))
        # An image that is looked at passes forwards three times, and four times' worth where it is learned.
        self._every = math.ceil(3 * self._most / (4 * len(images) * _SHARE_OF_LOOKS))

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        epochs = self._settings.epochs
        if (epoch + 1) % self._every or not epochs // 4 <= epoch < epochs - 1:
            return
        settings = self._settings
        now = FrozenEncoder(self._learner.product, self._viewer, settings.encoder, step, settings.data.resize)
        if faults(now, lambda: started(self._folder, settings), self._images, self._most):
            raise CollapsedError(f"stopped after epoch {epoch + 1} of {epochs}")


def why_refused(step: Mapping[str, Any], allowed: float | None) -> str:
    """Why a version may not become current, in words; empty where it may."""
    return "; ".join(step.get("faults", ())) or lost_too_much(step, allowed)


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
