"""What a drop gained on its own images and lost of those before it, in numbers and in a line.

Without labels this is a stand-in for accuracy: how often an image is recognised in another view among up to 256. The
views are not those of the training, but the encoder has trained on the images, the new ones and those it rehearses.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ccl.data import ImageSource
from ccl.encoders import Encoder
from ccl.encoders.feature_extraction import evaluating
from ccl.evaluation import recognition, standard_error
from ccl.evaluation.probes import CLEAR
from ccl.views import Viewer

MOMENT = (-1, -2)  # the views of no step and no selection, the same before and after
_BATCH = 512
_MOST_IMAGES = 256  # at even distances: enough for a change of some points, and cheap beside the learning
_HOW = "ccl pin ENCODER 0 uses the start as it is, ccl rollback ENCODER --to 0 returns to it"
_PROXY = "% recognised in another view"


def two_views(encoder: Encoder, viewer: Viewer, source: ImageSource) -> list[tuple[Tensor, Tensor]]:
    """Features (N, F) and unit embeddings (N, D) of two views of every image."""
    found: list[list[tuple[Tensor, Tensor]]] = []
    with evaluating(encoder):
        batches = torch.split(torch.arange(len(source)), _BATCH)
        for batch in viewer.batches(source, batches, moment=MOMENT, num_views=2):
            embedded = [encoder.embed(view) for view in batch.views]
            found.append([(one.features.float().cpu(), one.unit.float().cpu()) for one in embedded])
    features, units = ([torch.cat([batch[view][part] for batch in found]) for view in range(2)] for part in range(2))
    return list(zip(features, units, strict=True))


def recognised(readers: Mapping[str, tuple[Encoder, Viewer] | None], source: ImageSource) -> dict[str, Any] | None:
    """The percentage for each encoder ("start", "before", "after"), as JSON values; None for fewer than two images.

    An encoder that is there twice is read once; None stands for one that does not exist.
    """
    if len(source) < 2:
        return None
    if len(source) > _MOST_IMAGES:
        source = source.subset(torch.linspace(0, len(source) - 1, _MOST_IMAGES).round().long())
    known: dict[int, float] = {}
    found: dict[str, Any] = {"num_images": len(source)}
    for name, reader in readers.items():
        if reader is not None and id(reader[0]) not in known:
            first, second = two_views(*reader, source)
            known[id(reader[0])] = recognition(first[0], second[0])
        value = math.nan if reader is None else known[id(reader[0])]
        found[name] = value if math.isfinite(value) else None
    return found


def gains_line(step: Mapping[str, Any]) -> str:
    """New images, old images, and labelled ones where there are: before → after, the change, and the start.

    Empty for a drop learned by an earlier version of ccl, which did not measure it.
    """
    gains = step.get("gains")
    if not gains:
        return ""
    parts = []
    if step["accuracy"] is not None:
        accuracy = step["accuracy"]
        start = accuracy.get("beside", {}).get("start", {}).get("linear")
        change = _change(accuracy.get("linear_before"), accuracy["linear"], start)
        parts.append(f"labelled images {change.format('% by a linear probe')}")
    new, old = gains["new"], gains["old"]
    if new is not None:
        parts.append(f"new images {_change(new['before'], new['after'], new['start']).format(_PROXY)}")
    if old is not None:
        parts.append(f"old images {_change(old['before'], old['after'], old['start']).format(_PROXY)}")
    elif gains["has_past"]:
        parts.append("old images: none were remembered, so what was lost is not known (--probe would show it)")
    numbers = " and ".join(
        f"{part['num_images']:,} {name}" for name, part in (("new", new), ("old", old)) if part is not None
    )
    note = f" Recognition stands in for accuracy: no labels, {numbers} images that it trained on." if numbers else ""
    return f"gained and lost: {'; '.join(parts)}.{note}"


def _change(before: float | None, after: float | None, start: float | None) -> str:
    """Numbers around a place for what they are of."""
    if after is None:
        return "– {}"
    was = "" if before is None else f"{before:.1f} → "
    known = [] if before is None else [f"{after - before:+.1f}"]
    known += [] if start is None else [f"start {start:.1f}"]
    return f"{was}{after:.1f} {{}}" + (f" ({', '.join(known)})" if known else "")


def frozen_advice(step: Mapping[str, Any]) -> list[str]:
    """A line where weights that the encoder started from serve as well as they were; none where nothing shows it."""
    gains = step.get("gains")
    if not gains or not gains["from_weights"]:
        return []
    if step["accuracy"] is not None:
        start = step["accuracy"].get("beside", {}).get("start", {})
        return labelled_advice(step["accuracy"]["linear"], start.get("linear"))
    new = gains["new"] or {}
    after, start = new.get("after"), new.get("start")
    if after is None or start is None:
        return []
    error = math.hypot(*(standard_error(value, new["num_images"]) for value in (after, start)))
    if start - after <= CLEAR * error:
        return []
    return [f"the new images are recognised less often than by the start; compare both with ccl probe; {_HOW}"]


def labelled_advice(now: float, start: float | None) -> list[str]:
    """The same by accuracies, for an encoder that started from weights."""
    if start is None or now > start:
        return []
    return [f"on these labelled images the start, left frozen, does as well or better; {_HOW}"]
