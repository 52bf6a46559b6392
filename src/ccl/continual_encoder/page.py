"""The page of an encoder folder: its history, its health, the images it remembers, versions, what was refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccl.atomic_files import write_file
from ccl.continual_encoder.encoder_folder import PAGE, EncoderFolder, Ledger
from ccl.continual_encoder.gains import gains_line
from ccl.continual_encoder.probe_tables import class_table, confusion_figure, kept_confusion, score_table, scores_of
from ccl.continual_encoder.tables import (
    ACCURACY,
    MEASURES,
    Step,
    accuracy_error,
    events,
    history,
    pair,
    start_of,
    step_warnings,
)
from ccl.memory import RehearsalMemory
from ccl.report.figure_style import GREY, Drawing, drawing, drawing_of
from ccl.report.page_parts import Thumbnail, render, thumbnail
from ccl.training.checkpoint import DamagedError

_SHOWN = 24  # remembered images of a step
_MOST_SHOWN = 600  # of all steps: the page stays below a few MB
_AFTER = "#0080c6"  # what was before is grey
_WHOLE = {"neighbour_overlap": 1.0, "group_agreement": 100.0, ACCURACY: 100.0}  # the whole of what is a share
_MOST_LABELLED = 8  # drops whose numbers fit side by side; of more, the first and the last have theirs


_Kept = tuple[str, list[tuple[Thumbnail, str]]]  # of one step: its title, and its remembered images


def write_state_page(state: EncoderFolder) -> None:
    """Write the page anew; one that has learned nothing has none, and one that is damaged keeps its last."""
    ledger = state.ledger()
    if not ledger.current:
        (state.path / PAGE).unlink(missing_ok=True)  # of a version that was rolled back
        return
    try:
        about, memory = state.load(ledger.current).about, state.memory_of(ledger.current)
    except DamagedError:
        return
    steps = about["steps"]
    page = render(
        "ccl.continual_encoder",
        "page.html.j2",
        title=state.path.resolve().name,
        headline=_headline(ledger, steps, memory),
        verdict=steps[-1]["verdict"],
        gains=gains_line(steps[-1]),
        warnings=step_warnings(steps[-1]),
        probe=_probe(state, steps[-1]),
        history=history(steps, ledger, state.numbers(ledger)),
        health=_curves(steps, MEASURES),
        accuracy=_curves(steps, {ACCURACY: ACCURACY}),
        tested=steps[-1]["accuracy"],
        start_agreement=_start_agreement(steps[-1]),
        memory=_gallery(memory, steps),
        events=events(ledger),
        settings=about["settings"],
    )
    write_file(state.path / PAGE, page)


def _probe(state: EncoderFolder, step: Step) -> dict[str, Any] | None:
    """What the last drop's probe found: tables, and a drawing where it is still there; None where none was made."""
    scores = scores_of(step["accuracy"])
    if not scores:
        return None
    shown: dict[str, Any] = {"scores": score_table(scores)}
    if (kept := kept_confusion(state, step["version"])) is not None:
        name = "Which classes are taken for which"
        shown |= {
            "classes": class_table(*kept, most=None),
            "confusion": drawing_of(name, confusion_figure(*kept), "confusion"),
        }
    return shown


def _start_agreement(step: Step) -> str:
    value = start_of(step, "group_agreement")
    return "not measured" if value is None else f"{value:.1f} %"


def _headline(ledger: Ledger, steps: Sequence[Step], memory: RehearsalMemory) -> str:
    num_images, num_bytes = sum(step["num_images"] for step in steps), sum(map(len, memory.files))
    pinned = "" if ledger.pinned is None else f" Version {ledger.pinned} is pinned and used."
    drops = "one drop" if len(steps) == 1 else f"{len(steps)} drops"
    kept = f"{len(memory):,} of them ({num_bytes / 1e6:.1f} MB) are remembered, the others are not needed any more."
    return f"Version {ledger.current} is current.{pinned} {num_images:,} unlabelled images learned in {drops}; {kept}"


def _curves(steps: Sequence[Step], titles: Mapping[str, str]) -> list[Drawing]:
    """A drawing for each of these measures over the drops, of those that were measured."""
    known = [key for key in titles if any(pair(step, key)[1] is not None for step in steps)]
    return [drawing_of(titles[key], curve_over_drops(steps, key), key) for key in known]


def curve_over_drops(steps: Sequence[Step], key: str) -> Figure:
    """After each drop a dot with its number; where there is a before, a grey one joined to it; the start is dotted.

    The axis begins at zero, and shares show their whole range, so that a small change looks small.
    """
    pairs = [pair(step, key) for step in steps]
    known = [(place, before, after) for place, (before, after) in enumerate(pairs, start=1) if after is not None]
    values = [value for _, *both in known for value in both if value is not None]
    low, high = min(0.0, *values), max(_WHOLE.get(key, 0.0), *values)
    with drawing():
        figure = Figure(figsize=(3.4, 2.2))
        axes = figure.subplots()
        for place, before, after in known:
            if before is not None:
                axes.plot([place, place], [before, after], color=GREY, linewidth=1)
                axes.plot([place], [before], color=GREY, marker="o", markersize=4, linestyle="none")
        starts = [(place, start) for place, step in enumerate(steps, 1) if (start := start_of(step, key)) is not None]
        axes.plot([place for place, _ in starts], [start for _, start in starts], color=GREY, linestyle=":", marker="_")
        places, heights = [place for place, _, _ in known], [after for _, _, after in known]
        axes.plot(places, heights, color=_AFTER, marker="o", markersize=4)
        if key == ACCURACY:  # one standard error by the test set to either side
            errors = [accuracy_error(steps[place - 1]) or 0.0 for place in places]
            axes.errorbar(places, heights, errors, color=_AFTER, linewidth=1, capsize=3)
        for place, _, after in known if len(known) <= _MOST_LABELLED else (known[0], known[-1]):
            shown = f"{after:.1f}" if abs(after) >= 10 else f"{after:.2f}"
            axes.annotate(shown, (place, after), (5, 4), textcoords="offset points", fontsize=8)
        axes.set(xlim=(0.5, len(pairs) + 0.7), ylim=(1.15 * low, 1.15 * max(high, 0.0) or -0.1 * low or 1.0))
        axes.set_xlabel("drop")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.grid(axis="y")
    return figure


def _gallery(memory: RehearsalMemory, steps: Sequence[Step]) -> list[_Kept]:
    """Some images of each step, the surest first."""
    most = max(4, min(_SHOWN, _MOST_SHOWN // len(steps)))
    kept = []
    for number, step in enumerate(steps):
        own = torch.nonzero(memory.steps == number).flatten()
        order = own[torch.argsort(memory.scores[own].nan_to_num(0.0), stable=True)]
        images = []
        for position in order[:most].tolist():
            shown = thumbnail(memory.files[position])
            if shown is not None:
                images.append((shown, _about(memory, position)))
        kept.append((f"{step['name']}: {len(own):,} of {step['num_images']:,} images", images))
    return kept


def _about(memory: RehearsalMemory, position: int) -> str:
    score = float(memory.scores[position])
    cluster = int(memory.clusters[position])
    return "drawn at random" if score != score else f"group {cluster}, variance {score:.2g}"
