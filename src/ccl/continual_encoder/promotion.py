"""What a drop did to an encoder, and whether that is too much."""

from collections.abc import Mapping, Sequence
from typing import Any

from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.frozen_encoder import thawed
from ccl.continual_encoder.health import Accuracy, read, remembered
from ccl.data import Dataset, ImageSource
from ccl.evaluation import Drift
from ccl.settings import Settings
from ccl.training import Learner
from ccl.training.checkpoint import Checkpoint
from ccl.views import Viewer


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
    """Health and verdict on what was remembered when the drop came, and accuracy on labelled images, as JSON values."""
    before = None if parent is None else thawed(settings, parent)
    # What was remembered then, also what was let go since.
    memory = learner.memory if parent is None else state.memory_of(parent.number)
    drift = accuracy = accuracy_before = None
    if len(memory) > 1:
        source, groups = remembered(memory, images)
        was = None if before is None else read(before.encoder, before.viewer, source)
        drift = Drift.of(was, read(learner.product, viewer, source), groups)
    if labelled is not None:
        accuracy = Accuracy.of(learner.product, viewer, labelled)
        known = past[-1]["accuracy"] if past else None
        if known is not None and known["fingerprint"] == labelled.fingerprint:
            accuracy_before = known["linear"]
        elif before is not None:
            accuracy_before = Accuracy.of(before.encoder, before.viewer, labelled).linear
    if before is not None:
        before.close()
    return {
        "health": None if drift is None else drift.as_dict(),
        "verdict": "nothing is remembered, so nothing can be compared" if drift is None else drift.verdict,
        "accuracy": None if accuracy is None else {**accuracy.as_dict(), "linear_before": accuracy_before},
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
