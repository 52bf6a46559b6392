"""The page of an encoder folder: its history, its health, the images it remembers, versions, what was refused."""

from collections.abc import Sequence
from typing import Any

import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccl.atomic_files import write_file
from ccl.continual_encoder.encoder_folder import PAGE, EncoderFolder, Ledger
from ccl.continual_encoder.probe_tables import class_table, confusion_svg, kept_confusion, score_table, scores_of
from ccl.continual_encoder.tables import ACCURACY, MEASURES, Step, events, history, pair, start_of, step_warnings
from ccl.memory import RehearsalMemory
from ccl.report.drawing import GREY, drawing, to_svg
from ccl.report.templates import render
from ccl.report.thumbnails import Thumbnail, thumbnail
from ccl.training.checkpoint import DamagedError

_SHOWN = 24  # remembered images of a step
_MOST_SHOWN = 600  # of all steps: the page stays below a few MB
_AFTER = "#0080c6"  # what was before is grey
_PERCENT = (ACCURACY, "group_agreement")


_Kept = tuple[str, list[tuple[Thumbnail, str]]]  # of one step: its title, and its remembered images


def write_state_page(state: EncoderFolder) -> None:
    """Write the page anew; one that has learned nothing has none, and one that is damaged keeps its last."""
    ledger = state.ledger()
    if not ledger.current:
        return
    try:
        about, memory = state.load(ledger.current).about, state.memory_of(ledger.current)
    except DamagedError:
        return
    steps = about["steps"]
    figure = _curves(steps)
    page = render(
        "ccl.continual_encoder",
        "page.html.j2",
        title=state.path.resolve().name,
        headline=_headline(ledger, steps, memory),
        verdict=steps[-1]["verdict"],
        probe=_probe(state, steps[-1]),
        warnings=step_warnings(steps[-1]),
        history=history(steps, ledger, state.numbers(ledger)),
        curves=Markup(to_svg(figure)),  # our own drawing: matplotlib has escaped the names in it
        width=round(96 * figure.get_figwidth()),
        memory=_gallery(memory, steps),
        start_agreement=_start_agreement(steps[-1]),
        events=events(ledger),
        settings=about["settings"],
    )
    write_file(state.path / PAGE, page)


def _probe(state: EncoderFolder, step: Step) -> dict[str, Any] | None:
    """What the last drop's probe found: tables, and a drawing where it is still there; None where none was made."""
    scores = scores_of(step["accuracy"])
    if not scores:
        return None
    shown: dict[str, Any] = {"folder": step["accuracy"]["folder"], "scores": score_table(scores)}
    if (kept := kept_confusion(state, step["version"])) is not None:
        drawn, width = confusion_svg(*kept)
        # Our own drawing: matplotlib has escaped the names in it.
        shown |= {"classes": class_table(*kept, most=None), "confusion": Markup(drawn), "width": width}
    return shown


def _start_agreement(step: Step) -> str:
    value = (step["health"] or {}).get("start_agreement")
    return "not measured" if value is None else f"{value:.1f} %"


def _headline(ledger: Ledger, steps: Sequence[Step], memory: RehearsalMemory) -> str:
    num_images, num_bytes = sum(step["num_images"] for step in steps), sum(map(len, memory.files))
    pinned = "" if ledger.pinned is None else f" Version {ledger.pinned} is pinned and used."
    drops = "one drop" if len(steps) == 1 else f"{len(steps)} drops"
    kept = f"{len(memory):,} of them ({num_bytes / 1e6:.1f} MB) are remembered, the others are not needed any more."
    return f"Version {ledger.current} is current.{pinned} {num_images:,} unlabelled images learned in {drops}; {kept}"


def _curves(steps: Sequence[Step]) -> Figure:
    """A panel for each measure over the drops; accuracy too, where it was measured."""
    titles = {ACCURACY: ACCURACY, **MEASURES}
    known = [key for key in titles if any(pair(step, key)[1] is not None for step in steps)]
    columns = max(1, min(3, len(known)))
    rows = max(1, -(-len(known) // columns))
    with drawing():
        figure = Figure(figsize=(3.4 * columns, 2.1 * rows))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(known) :]:
            axes.set_visible(False)
        for axes, key in zip(grid.flat, known, strict=False):
            _curve(axes, titles[key], [pair(step, key) for step in steps], [start_of(step, key) for step in steps])
            if key in _PERCENT:
                axes.set_ylim(0, 100)  # so that two points more don't look like a leap
    return figure


def _curve(
    axes: Axes, title: str, pairs: Sequence[tuple[float | None, float | None]], starts: Sequence[float | None]
) -> None:
    """After each drop a dot; where there is a before, a grey one joined to it; the start as a dotted line."""
    first = [(place, start) for place, start in enumerate(starts, start=1) if start is not None]
    axes.plot([place for place, _ in first], [start for _, start in first], color=GREY, linestyle=":", marker="_")
    known = [(place, before, after) for place, (before, after) in enumerate(pairs, start=1) if after is not None]
    for place, before, after in known:
        if before is not None:
            axes.plot([place, place], [before, after], color=GREY, linewidth=1)
            axes.plot([place], [before], color=GREY, marker="o", markersize=4, linestyle="none")
    axes.plot(
        [place for place, _, _ in known], [after for _, _, after in known], color=_AFTER, marker="o", markersize=4
    )
    axes.set_title(title, loc="left")
    axes.set_xlim(0.5, len(pairs) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.margins(y=0.15)
    axes.grid(axis="y")


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
