"""The settings of one drop: the folder's own, the effort that suits the drop, and above them all that was asked for."""

from collections.abc import Mapping
from typing import Any

import torch

from ccl.continual_encoder.default_settings import changed, choose
from ccl.continual_encoder.drop_effort import DropSize, choose_effort, effort_of
from ccl.data import Gathered
from ccl.loading import validated, without_gone
from ccl.runs.run_checkpoint import by_part
from ccl.runs.start import resolved
from ccl.section import merged
from ccl.settings import Settings, own_defaults
from ccl.training.checkpoint import Checkpoint

ASKED = "asked"  # what a version says of all settings that were asked for until then


def asked_until(parent: Checkpoint | None, before: Settings | None, asked_first: Mapping[str, Any]) -> dict[str, Any]:
    """All that was asked for before this drop, of which nothing is chosen anew."""
    if parent is None:
        return dict(asked_first)
    if ASKED not in parent.about and before is not None:  # made by a ccl that chose once for all drops: it stays so
        return effort_of(before)
    return without_gone(parent.about[ASKED])


def chosen_settings(
    parent: Checkpoint | None, before: Settings | None, new: Gathered, asked: Mapping[str, Any]
) -> tuple[Settings, list[str]]:
    """Settings for a drop that begins, with what was asked for on top, and why they are what they are, a line each.

    `parent` and `before` are the current version and the folder's settings, None for the first drop.
    """
    kind = str(asked.get("device", "auto" if before is None else before.device))
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    kind = kind.partition(":")[0]
    if parent is None or before is None:
        settings, why_so = choose(len(new.source), new.median_side, kind, asked)
        return resolved(settings), why_so
    remembered = by_part(parent.tensors)["memory"]["lengths"]
    size = DropSize(len(new.source), len(remembered), int(parent.about["next_id"]))
    effort, why = choose_effort(size, kind == "cuda", asked, before.encoder.weights is not None)
    # An objective that brings its own optimizer brings its rate too.
    effort = merged(effort, {"optimizer": own_defaults(before.objective, "").get("optimizer", {})})
    if not parent.about["steps"]:  # weights that nothing was learned with yet: a queue may have any length
        return validated(merged(merged(before.model_dump(mode="json"), effort), asked)), [why]
    # A queue only grows: what it holds came from the encoder before, and is not thrown away.
    effort["moco_v2"]["queue_size"] = max(effort["moco_v2"]["queue_size"], before.moco_v2.queue_size)
    return changed(before, merged(effort, asked)), [why]
