"""The page of an encoder folder: its history, its health, the images it remembers, versions, what was refused."""

from collections.abc import Sequence

import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccl.atomic_files import write_file
from ccl.continual_encoder.encoder_folder import PAGE, EncoderFolder, Ledger
from ccl.continual_encoder.tables import ACCURACY, MEASURES, Step, events, history, pair
from ccl.memory import RehearsalMemory
from ccl.report.drawing import GREY, drawing, to_svg
from ccl.report.templates import render
from ccl.report.thumbnails import Thumbnail, thumbnail

_SHOWN = 24  # remembered images of a step
_MOST_SHOWN = 600  # of all steps: the page stays below a few MB
_AFTER = "#0080c6"  # what was before is grey


_Kept = tuple[str, list[tuple[Thumbnail, str]]]  # of one step: its title, and its remembered images


def write_state_page(state: EncoderFolder) -> None:
    """Write the page anew; one that has learned nothing has none."""
    ledger = state.ledger()
    if not ledger.current:
        (state.path / PAGE).unlink(missing_ok=True)  # of a version that was rolled back
        return
    about = state.version(ledger.current).about
    steps, memory = about["steps"], state.memory_of(ledger.current)
    figure = _curves(steps)
    page = render(
        "ccl.continual_encoder",
        "page.html.j2",
        title=state.path.resolve().name,
        headline=_headline(ledger, steps, memory),
        verdict=steps[-1]["verdict"],
        history=history(steps, ledger, state.numbers(ledger)),
        curves=Markup(to_svg(figure)),  # our own drawing: matplotlib has escaped the names in it
        width=round(96 * figure.get_figwidth()),
        memory=_gallery(memory, steps),
        events=events(ledger),
        settings=about["settings"],
    )
    write_file(state.path / PAGE, page)


def _headline(ledger: Ledger, steps: Sequence[Step], memory: RehearsalMemory) -> str:
    num_images, num_bytes = sum(step["num_images"] for step in steps), sum(map(len, memory.files))
    pinned = "" if ledger.pinned is None else f" Version {ledger.pinned} is pinned and used."
    drops = "one drop" if len(steps) == 1 else f"{len(steps)} drops"
    kept = f"{len(memory):,} images ({num_bytes / 1e6:.1f} MB) are remembered, the others are not needed any more."
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
            _curve(axes, titles[key], [pair(step, key) for step in steps])
    return figure


def _curve(axes: Axes, title: str, pairs: Sequence[tuple[float | None, float | None]]) -> None:
    """After each drop a dot; where there is a before, a grey one joined to it."""
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
