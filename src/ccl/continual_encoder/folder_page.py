"""What an encoder folder shows: tables, sentences, and the page with its drawings."""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ccl.atomic_files import replacing, write_file
from ccl.continual_encoder.folder import PAGE, PROBE, STEPS, EncoderFolder
from ccl.continual_encoder.ledger import Ledger
from ccl.continual_encoder.probe_classifiers import TITLES, USE_THE_START, warnings
from ccl.errors import counted
from ccl.evaluation import ProbeScore, standard_error
from ccl.evaluation.probes import CLEAR
from ccl.memory import RehearsalMemory
from ccl.report.page_parts import Thumbnail, render, thumbnail
from ccl.report.seed_statistics import Estimate
from ccl.report.svg_figures import GREY, Drawing, drawing, drawing_of, short
from ccl.report.tables import Table
from ccl.runs.forecast import size
from ccl.training.checkpoint import DamagedError

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
_PROBES = {ACCURACY: "linear", "nearest neighbours' accuracy, %": "knn"}  # as a version has them

_MOST_NAMES = 40  # classes whose names stand beside the picture
_MOST_ROWS = 20  # classes of a table on a terminal

_SHOWN = 24  # remembered images of a step
_MOST_SHOWN = 600  # of all steps: the page stays below a few MB
_AFTER = "#0080c6"  # what was before is grey
_WHOLE = {"neighbour_overlap": 1.0, "group_agreement": 100.0, ACCURACY: 100.0}  # the whole of what is a share
_MOST_LABELLED = 8  # drops whose numbers fit side by side; of more, the first and the last have theirs


def measured(step: Step, measure: str) -> tuple[float | None, float | None, float | None]:
    """A measure at the start, before and after a drop; None where it was not measured."""
    if measure in _PROBES:
        accuracy, probe = step["accuracy"], _PROBES[measure]
        if accuracy is None:
            return None, None, None
        return accuracy["beside"]["start"][probe], accuracy[f"{probe}_before"], accuracy[probe]
    health = step["health"] or {}
    start, value = health.get("start_agreement") if measure == "group_agreement" else None, health.get(measure)
    before, after = value if isinstance(value, list | tuple) else (None, value)
    return start, before, after


def history(steps: Sequence[Step], ledger: Ledger, there: Sequence[int]) -> Table:
    """A row for each drop that the current version has learned; `there` are the versions still on the disk."""
    rows = []
    for step in steps:
        number = step["version"]
        marks = ["current"] * (number == ledger.current) + ["pinned"] * (number == ledger.pinned)
        marks += [] if number in there else ["let go"]
        start = measured(step, "group_agreement")[0]
        # Beside its value at the start, or not at all: alone it would look like an accuracy.
        agreement = "–" if start is None else f"{_change(step, 'group_agreement')} (start {_shown(start)})"
        row = {
            "drop": str(step["name"]),
            "version": ", ".join([str(number), *marks]),
            "date (UTC)": str(step["date"]),
            "new images": f"{step['num_images']:,}",
            "left out": f"{step['num_known'] + step['num_repeated']:,}",
            "remembered": f"{step['num_remembered']:,}",
            "neighbours kept": _shown(measured(step, "neighbour_overlap")[2]),
            "agreement with groups, %": agreement,
        }
        if any(step["accuracy"] for step in steps):
            row[ACCURACY] = _change(step, ACCURACY) + _error(step)
        rows.append(row | {"training": f"{step['seconds']:,.0f} s"})
    spare = ("training", "left out", "date (UTC)", "remembered")
    note = "Left out: learned before, or there twice, by content."
    return Table("History", tuple(rows[0]), tuple(tuple(row.values()) for row in rows), note, spare)


def kept_sentence(step: Mapping[str, Any], num_seen: int) -> str:
    """A sentence on how many images are kept, of how many."""
    images = counted(step["num_images"], "image")
    in_all = f"{step['num_remembered']:,} of {num_seen:,} in all, {size(step['memory_bytes'])}"
    rest = "; the others are not needed any more" if step["num_kept"] < step["num_images"] else ""
    return f"Kept {step['num_kept']:,} of its {images} ({in_all}){rest}."


def probe_and_health(step: Step) -> list[Table]:
    """A drop's outcome as tables: accuracies where there are labels, and health."""
    return [*([score_table(scores_of(step))] if step["accuracy"] else []), health(step)]


def step_warnings(step: Step) -> list[str]:
    """Warnings about the features after a drop, a line each."""
    if step["accuracy"] is not None:
        return warnings(scores_of(step), step["gains"]["from_weights"])
    return frozen_advice(step["gains"])


def health(step: Step) -> Table:
    """At the start → before → after the drop, on the images that were remembered when it came."""
    rows = []
    for key, title in (MEASURES | {probe: probe for probe in _PROBES}).items():
        start, before, after = measured(step, key)
        if after is not None:
            error = _error(step) if key == ACCURACY else ""
            rows.append((title, _shown(start), _shown(before), _shown(after) + error))
    note = "Start: the encoder before its first drop."
    return Table(f"Step {step['step']}: {step['name']}", ("", "start", "before", "after"), tuple(rows), note)


def events(ledger: Ledger) -> Table:
    """All that happened, the newest first."""
    about = {
        "started": "from {weights}",
        "learned": "{name} → version {version}: {verdict}",
        "refused": "{name}: {reason}",
        "promoted": "version {version}, which was refused, in place of {before}",
        "rolled back": "from version {before} to version {version}",
        "pinned": "version {version}",
        "unpinned": "",
    }
    rows = []
    for event in reversed(ledger.events):
        when, kind = time.strftime("%Y-%m-%d %H:%M", time.gmtime(event["when"])), event["kind"]
        rows.append((when, kind, about[kind].format(**event)))
    return Table("What happened", ("when (UTC)", "what", "about"), tuple(rows), "")


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def accuracy_error(step: Step) -> float:
    """Standard error of the accuracy after a drop, by the number of test images."""
    return standard_error(step["accuracy"]["linear"], step["accuracy"]["num_test"])


def _error(step: Step) -> str:
    return f" ± {accuracy_error(step):.1f}" if step["accuracy"] else ""


def _change(step: Step, measure: str) -> str:
    _, before, after = measured(step, measure)
    return _shown(after) if before is None else f"{_shown(before)} → {_shown(after)}"


def gains_line(step: Step) -> str:
    """New images, old images, and labelled ones where there are: before → after, the change, and the start.

    Empty for a drop that was not learned.
    """
    if not step:
        return ""
    gains, parts = step["gains"], []
    if step["accuracy"] is not None:
        parts.append(f"labelled images {_change_in_words(*measured(step, ACCURACY)).format('% by a linear probe')}")
    groups = {name: gains[name] for name in ("new", "old") if gains[name] is not None}
    for name, part in groups.items():
        values = (part[when] for when in ("start", "before", "after"))
        parts.append(f"{name} images {_change_in_words(*values).format('% recognised in another view')}")
    if "old" not in groups and gains["has_past"]:
        parts.append("old images: none were remembered, so what was lost is not known (--probe would show it)")
    numbers = " and ".join(f"{part['num_images']:,} {name}" for name, part in groups.items())
    note = f" Recognition stands in for accuracy: no labels, {numbers} images that it trained on." if numbers else ""
    return f"gained and lost: {'; '.join(parts)}.{note}"


def _change_in_words(start: float | None, before: float | None, after: float | None) -> str:
    """Numbers around a place for what they are of."""
    if after is None:
        return "– {}"
    was = "" if before is None else f"{before:.1f} → "
    known = [] if before is None else [f"{after - before:+.1f}"]
    known += [] if start is None else [f"start {start:.1f}"]
    return f"{was}{after:.1f} {{}}" + (f" ({', '.join(known)})" if known else "")


def frozen_advice(gains: Mapping[str, Any]) -> list[str]:
    """A line where weights that the encoder started from served the new images clearly better as they were."""
    new = gains["new"]
    if not gains["from_weights"] or new is None or new["after"] is None or new["start"] is None:
        return []
    error = math.hypot(*(standard_error(new[when], new["num_images"]) for when in ("after", "start")))
    if new["start"] - new["after"] <= CLEAR * error:
        return []
    return [f"the new images are recognised less often than by the start; compare both with ccl probe; {USE_THE_START}"]


def scores_of(step: Step) -> dict[str, ProbeScore]:
    """The scores of a drop's probe, by the names of `TITLES`."""
    kinds, num_test = {"features": step["accuracy"], **step["accuracy"]["beside"]}, step["accuracy"]["num_test"]
    return {kind: ProbeScore(kinds[kind]["linear"], kinds[kind]["knn"], num_test) for kind in TITLES}


def score_table(scores: Mapping[str, ProbeScore]) -> Table:
    """Learned features beside what needs no learning, each with its standard error."""
    num_test = scores["features"].num_test
    rows = []
    for kind, score in scores.items():
        linear = _with_error(score.linear, score.linear_error, num_test)
        rows.append((TITLES[kind], linear, _with_error(score.knn, score.knn_error, num_test)))
    note = f"Accuracy on {num_test:,} held-out images ± its standard error: what another draw of images would change."
    return Table("What the features are worth", ("", "linear, %", "nearest neighbours, %"), tuple(rows), note)


def class_table(names: Sequence[str], confusion: Tensor, most: int | None = _MOST_ROWS) -> Table:
    """Each class with its accuracy and what it was most often taken for, the worst first."""
    totals = confusion.sum(dim=1)  # (C,)
    accuracy = 100 * confusion.diagonal() / totals  # nan where a class has no test images
    mistakes = confusion.clone().fill_diagonal_(0)
    rows = []
    for place in sorted(torch.nonzero(totals).flatten().tolist(), key=lambda place: float(accuracy[place])):
        value, total = float(accuracy[place]), int(totals[place])
        taken, count = int(mistakes[place].argmax()), int(mistakes[place].max())
        mistaken = f"{names[taken]} ({count})" if count else None
        rows.append((names[place], f"{total:,}", _with_error(value, standard_error(value, total), total), mistaken))
    left_out = f" {len(rows) - most} better classes are not shown." if most and len(rows) > most else ""
    note = f"By the linear classifier, the worst first.{left_out}"
    columns = ("class", "images", "accuracy, %", "most often taken for")
    return Table("Class by class", columns, tuple(rows[:most]), note)


def _with_error(value: float, error: float, num_images: int) -> Estimate:
    """Shown as value ± error, on one line."""
    return Estimate(value, error, math.nan, math.nan, num_images)


def confusion_figure(names: Sequence[str], confusion: Tensor) -> Figure:
    """Rows are what the images are, columns what they were taken for; dark is a large share of the row."""
    shares = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1)  # (C, C)
    has_names = len(names) <= _MOST_NAMES
    side = 2.4 + (0.24 * len(names) if has_names else 4.5)
    with drawing():
        figure = Figure(figsize=(side + 0.6, side))
        axes = figure.subplots()
        shown = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xlabel("taken for")
        axes.set_ylabel("is")
        if has_names:
            labels = [short(name) for name in names]
            axes.set_xticks(range(len(names)), labels, rotation=90)
            axes.set_yticks(range(len(names)), labels)
        else:
            axes.set_title(f"{len(names)} classes, in the order of their names", loc="left")
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.colorbar(shown, ax=axes, shrink=0.7, label="share of the class")
    return figure


def write_confusion(path: Path, names: Sequence[str], confusion: Tensor) -> None:
    """The same as a PNG."""
    with replacing(path) as unfinished, drawing():
        figure = confusion_figure(names, confusion)
        figure.savefig(unfinished, format="png", dpi=120, facecolor="white")


def write_page(folder: EncoderFolder) -> None:
    """Write the page anew; one that has learned nothing has none, and one that is damaged keeps its last."""
    ledger = folder.ledger()
    if not ledger.current:
        (folder.path / PAGE).unlink(missing_ok=True)  # of a version that was rolled back
        return
    try:
        about, memory = folder.load(ledger.current).about, folder.memory_of(ledger.current)
    except DamagedError:
        return
    steps = about["steps"]
    last, agreement = steps[-1], measured(steps[-1], "group_agreement")[0]
    pinned = "" if ledger.pinned is None else f" Version {ledger.pinned} is pinned and used."
    there = [number for number in ledger.candidates if number in folder.numbers(ledger)]
    pinned += f" Version {there[-1]} was refused and is a candidate: see below." if there else ""
    drops = "one drop" if len(steps) == 1 else f"{len(steps)} drops"
    learned = f"{sum(step['num_images'] for step in steps):,} unlabelled images learned in {drops}"
    kept = f"{len(memory):,} of them ({sum(map(len, memory.files)) / 1e6:.1f} MB) are remembered"
    page = render(
        "ccl.continual_encoder",
        "page.html.j2",
        title=folder.path.resolve().name,
        headline=f"Version {ledger.current} is current.{pinned} {learned}; {kept}, the others are not needed any more.",
        verdict=last["verdict"],
        gains=gains_line(last),
        warnings=step_warnings(last),
        probe=_probe(folder, last),
        history=history(steps, ledger, folder.numbers(ledger)),
        health=_curves(steps, MEASURES),
        accuracy=_curves(steps, {ACCURACY: ACCURACY}),
        tested=last["accuracy"],
        start_agreement="not measured" if agreement is None else f"{agreement:.1f} %",
        memory=_gallery(memory, steps),
        events=events(ledger),
        settings=about["settings"],
    )
    write_file(folder.path / PAGE, page + _sealed(page))


def _sealed(page: str) -> str:
    return f"<!-- sha256 {hashlib.sha256(page.encode()).hexdigest()} -->\n"


def is_whole_page(path: Path) -> bool:
    """Whether a page is as it was written."""
    page, _, end = path.read_bytes().decode(errors="replace").rpartition("<!-- sha256 ")
    return _sealed(page) == f"<!-- sha256 {end}"


def _probe(folder: EncoderFolder, step: Step) -> dict[str, Any] | None:
    """The last drop's probe: tables, and a drawing where its file is still there; None where none was made."""
    if step["accuracy"] is None:
        return None
    shown: dict[str, Any] = {"scores": score_table(scores_of(step))}
    try:
        path = folder.path / STEPS / f"{step['version']:08d}" / PROBE
        content = json.loads(path.read_text(encoding="utf-8"))
        names, counts = tuple(map(str, content["classes"])), torch.tensor(content["counts"], dtype=torch.int64)
        shown["classes"] = class_table(names, counts, most=None)
        figure = confusion_figure(names, counts)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError):  # it is not there, or not whole
        return shown
    return shown | {"confusion": drawing_of("Which classes are taken for which", figure, "confusion")}


def _curves(steps: Sequence[Step], titles: Mapping[str, str]) -> list[Drawing]:
    """A drawing for each of these measures over the drops, of those that were measured."""
    known = [key for key in titles if any(measured(step, key)[2] is not None for step in steps)]
    return [drawing_of(titles[key], curve_over_drops(steps, key), key) for key in known]


def curve_over_drops(steps: Sequence[Step], key: str) -> Figure:
    """After each drop a dot with its number; where there is a before, a grey one joined to it; the start is dotted.

    The axis begins at zero, and shares show their whole range, so that a small change looks small.
    """
    found = [(place, *measured(step, key)) for place, step in enumerate(steps, start=1)]
    starts = [(place, start) for place, start, _, _ in found if start is not None]
    known = [(place, before, after) for place, _, before, after in found if after is not None]
    values = [value for _, *both in known for value in both if value is not None]
    low, high = min(0.0, *values), max(_WHOLE.get(key, 0.0), *values)
    with drawing():
        figure = Figure(figsize=(3.4, 2.2))
        axes = figure.subplots()
        for place, before, after in known:
            if before is not None:
                axes.plot([place, place], [before, after], color=GREY, linewidth=1)
                axes.plot([place], [before], color=GREY, marker="o", markersize=4, linestyle="none")
        axes.plot([place for place, _ in starts], [start for _, start in starts], color=GREY, linestyle=":", marker="_")
        places, heights = [place for place, _, _ in known], [after for _, _, after in known]
        axes.plot(places, heights, color=_AFTER, marker="o", markersize=4)
        if key == ACCURACY:  # one standard error by the test set to either side
            errors = [accuracy_error(steps[place - 1]) for place in places]
            axes.errorbar(places, heights, errors, color=_AFTER, linewidth=1, capsize=3)
        for place, _, after in known if len(known) <= _MOST_LABELLED else (known[0], known[-1]):
            axes.annotate(_shown(after), (place, after), (5, 4), textcoords="offset points", fontsize=8)
        top = 1.15 * high if high > 0 else -0.1 * low or 1.0  # what is below zero has its zero above
        axes.set(xlim=(0.5, len(steps) + 0.7), ylim=(1.15 * low, top))
        axes.set_xlabel("drop")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.grid(axis="y")
    return figure


def _gallery(memory: RehearsalMemory, steps: Sequence[Step]) -> list[tuple[str, list[tuple[Thumbnail, str]]]]:
    """Some images of each step, the surest first."""
    most = max(4, min(_SHOWN, _MOST_SHOWN // len(steps)))
    kept = []
    for number, step in enumerate(steps):
        own = torch.nonzero(memory.steps == number).flatten()
        order = own[torch.argsort(memory.scores[own].nan_to_num(0.0), stable=True)]
        images = []
        for position in order[:most].tolist():
            score, cluster = float(memory.scores[position]), int(memory.clusters[position])
            about = "drawn at random" if math.isnan(score) else f"group {cluster}, variance {score:.2g}"
            if (shown := thumbnail(memory.files[position])) is not None:
                images.append((shown, about))
        kept.append((f"{step['name']}: {len(own):,} of {step['num_images']:,} images", images))
    return kept
