"""An encoder's history, health and events as tables, for the console and for its page."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ccl.continual_encoder.encoder_folder import Ledger
from ccl.continual_encoder.gains import frozen_advice
from ccl.continual_encoder.probe_tables import score_table, scores_of
from ccl.continual_encoder.probing import warnings
from ccl.errors import counted
from ccl.evaluation import standard_error
from ccl.report.tables import Table
from ccl.runs.forecast import size

Step = Mapping[str, Any]  # what a version remembers of a drop

# The measures of `Drift`: what they are called, and which way is good.
MEASURES = {
    "neighbour_overlap": "neighbours kept (1 is best)",
    "group_agreement": "agreement, % (higher is better)",
    "effective_rank": "effective rank (higher is richer)",
    "centroid_drift": "drift of groups (0 is best)",
    "alignment": "alignment (lower is better)",
    "uniformity": "uniformity (lower is better)",
}
ACCURACY = "linear accuracy, %"


def pair(step: Step, measure: str) -> tuple[float | None, float | None]:
    """A measure before and after a drop; measures of the change itself have no before."""
    if measure == ACCURACY:
        accuracy = step["accuracy"] or {}
        return accuracy.get("linear_before"), accuracy.get("linear")
    value = (step["health"] or {}).get(measure)
    return (value[0], value[1]) if isinstance(value, list | tuple) else (None, value)


def start_of(step: Step, measure: str) -> float | None:
    """The same of the encoder before its first drop, where that was measured."""
    if measure == ACCURACY:
        value: float | None = (step["accuracy"] or {}).get("beside", {}).get("start", {}).get("linear")
    else:
        value = (step["health"] or {}).get("start_agreement") if measure == "group_agreement" else None
    return value


def history(steps: Sequence[Step], ledger: Ledger, there: Sequence[int]) -> Table:
    """A row for each drop that the current version has learned; `there` are the versions still on the disk."""
    about = ("drop", "version", "date (UTC)", "new images", "left out", "remembered")
    has_accuracy = any(step["accuracy"] for step in steps)
    measured = ("neighbours kept", "agreement with groups, %", *([ACCURACY] if has_accuracy else []), "training")
    rows = []
    for step in steps:
        number = step["version"]
        marks = ["current"] * (number == ledger.current) + ["pinned"] * (number == ledger.pinned)
        marks += [] if number in there else ["let go"]
        rows.append(
            (
                str(step["name"]),
                ", ".join([str(number), *marks]),
                str(step["date"]),
                f"{step['num_images']:,}",
                f"{step['num_known'] + step['num_repeated']:,}",
                f"{step['num_remembered']:,}",
                _shown(pair(step, "neighbour_overlap")[1]),
                _agreement(step),
                *([_change(pair(step, ACCURACY)) + _error(step)] if has_accuracy else []),
                f"{step['seconds']:,.0f} s",
            )
        )
    spare = ("training", "left out", "date (UTC)", "remembered")
    return Table(
        "History", about + measured, tuple(rows), "Left out: learned before, or there twice, by content.", spare
    )


def kept_sentence(step: Mapping[str, Any], num_seen: int) -> str:
    """How many images stay, of how many."""
    images = counted(step["num_images"], "image")
    in_all = f"{step['num_remembered']:,} of {num_seen:,} in all, {size(step['memory_bytes'])}"
    rest = "; the others are not needed any more" if step["num_kept"] < step["num_images"] else ""
    return f"Kept {step['num_kept']:,} of its {images} ({in_all}){rest}."


def probe_and_health(step: Step) -> list[Table]:
    """What a drop did, as tables: what the features are worth where there are labels, and their health."""
    scores = scores_of(step["accuracy"])
    return [*([score_table(scores)] if scores else []), health(step)]


def step_warnings(step: Step) -> list[str]:
    """What to know before one relies on the features after a drop, a line each; an empty step has none."""
    return [*warnings(scores_of(step.get("accuracy"))), *frozen_advice(step)]


def health(step: Step) -> Table:
    """At the start → before → after the drop, on the images that were remembered when it came."""
    accuracy = step["accuracy"] or {}
    start = accuracy.get("beside", {}).get("start", {})
    rows = []
    for key, title in {**MEASURES, ACCURACY: ACCURACY}.items():
        before, after = pair(step, key)
        if after is not None:
            error = _error(step) if key == ACCURACY else ""
            rows.append((title, _shown(start_of(step, key)), _shown(before), _shown(after) + error))
    if accuracy:
        before, after = accuracy.get("knn_before"), accuracy["knn"]
        rows.append(("nearest neighbours' accuracy, %", _shown(start.get("knn")), _shown(before), _shown(after)))
    note = "Start: the encoder before its first drop."
    return Table(f"Step {step['step']}: {step['name']}", ("", "start", "before", "after"), tuple(rows), note)


def events(ledger: Ledger) -> Table:
    """All that happened, the newest first."""
    rows = [
        (time.strftime("%Y-%m-%d %H:%M", time.gmtime(event["when"])), str(event["kind"]), _what(event))
        for event in reversed(ledger.events)
    ]
    return Table("What happened", ("when (UTC)", "what", "about"), tuple(rows), "")


def _what(event: Mapping[str, Any]) -> str:
    if event["kind"] == "refused":
        return f"{event['name']}: {event['reason']}"
    if event["kind"] == "learned":
        return f"{event['name']} → version {event['version']}: {event['verdict']}"
    if event["kind"] == "started":
        return f"from {event['weights']}"
    if event["kind"] == "rolled back":
        return f"from version {event['before']} to version {event['version']}"
    return "" if event.get("version") is None else f"version {event['version']}"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def accuracy_error(step: Step) -> float | None:
    """Standard error of the accuracy after a drop, by the number of test images; None where it was not measured."""
    accuracy = step["accuracy"] or {}
    return standard_error(accuracy["linear"], accuracy["num_test"]) if "num_test" in accuracy else None


def _error(step: Step) -> str:
    error = accuracy_error(step)
    return "" if error is None else f" ± {error:.1f}"


def _agreement(step: Step) -> str:
    """Beside its value at the start, or not at all: alone it would look like an accuracy."""
    start = start_of(step, "group_agreement")
    return "–" if start is None else f"{_change(pair(step, 'group_agreement'))} (start {_shown(start)})"


def _change(values: tuple[float | None, float | None]) -> str:
    before, after = values
    return _shown(after) if before is None else f"{_shown(before)} → {_shown(after)}"
