"""A stream's numbers as figures, drawn without pyplot, so that nothing global is opened or changed."""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ccl.evaluation import AccuracyMatrix
from ccl.report.run_folder import RunRecord
from ccl.report.tables import RANDOM_TITLE, labels, random_accuracy

_INK = "#010203"  # stands for the page's text colour; no other colour here is this one
_GREY = "#8a8a8a"
# Okabe and Ito's colours, safe for colour-blind readers, without their yellow (too pale on white); olive is Tol's.
# A marker beside each, so that no strategy is told by its colour alone.
STYLES: dict[str, tuple[str, str]] = {
    "finetuning": ("#d55e00", "o"),
    "simple_rehearsal": ("#e69f00", "s"),
    "variance_rehearsal": ("#56b4e9", "^"),
    "variance_distillation": ("#009e73", "v"),
    "ccl": ("#0080c6", "D"),
    "variance_queue": ("#cc79a7", "P"),
    "random_ccl": ("#999933", "X"),
    "upper_bound": (_INK, ""),
}
_LOSS_COLOURS = ("#0080c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MATRICES_PER_LINE = 4
_CELL = 0.47  # inches

_INKED = (
    "text.color",
    "xtick.color",
    "ytick.color",
    "grid.color",
    "axes.edgecolor",
    "axes.labelcolor",
    "axes.titlecolor",
)
_DRAWING: Any = dict.fromkeys(_INKED, _INK) | {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "figure.constrained_layout.use": True,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ccl",
    # Names come from files and folders: a dollar sign in one is no formula.
    "text.parse_math": False,
    "text.usetex": False,
}


def accuracy_matrices(records: Sequence[RunRecord]) -> Figure:
    """The accuracy matrix of each run as a heat map, all on one colour scale; what was not measured stays blank."""
    pairs = zip(labels(records), records, strict=True)
    shown = [(name, record, record.accuracy) for name, record in pairs if record.accuracy is not None]
    if not shown:
        return _nothing("no accuracy was measured")
    values = [np.vstack([matrix.random_per_step, matrix.per_step]) for _, _, matrix in shown]  # (1+T, T) each
    known = np.concatenate([rows[np.isfinite(rows)] for rows in values])
    scale = Normalize(10 * math.floor(known.min() / 10), 10 * math.ceil(max(known.max(), 1) / 10))
    num_columns = min(len(shown), _MATRICES_PER_LINE)
    num_lines = math.ceil(len(shown) / num_columns)
    num_steps = max(matrix.num_steps for _, _, matrix in shown)
    size = (num_columns * (_CELL * num_steps + 0.3) + 1.9, num_lines * (_CELL * 0.75 * (num_steps + 1) + 1.2))
    with _drawing():
        figure = Figure(figsize=size)
        grid = figure.subplots(num_lines, num_columns, squeeze=False)
        colours = matplotlib.colormaps["cividis"].resampled(40)  # few enough to stay vectors in the colour bar
        for place, axes in enumerate(grid.flat):
            if place >= len(shown):
                axes.set_axis_off()
                continue
            name, record, _ = shown[place]
            _heat_map(axes, values[place], scale, colours)
            axes.set_title(_name(name, 34), loc="left")
            _name_ticks(axes, record.step_names, first=0)
            rows = ["random", *(f"after step {number}" for number in range(1, len(values[place])))]
            axes.set_yticks(range(len(rows)), rows if place % num_columns == 0 else [""] * len(rows))
        mappable = matplotlib.cm.ScalarMappable(scale, colours)
        bar: Any = {"fraction": 0.16 / size[0], "aspect": size[1] / 0.16, "pad": 0.015}  # 0.16 inches wide
        figure.colorbar(mappable, ax=grid, label="accuracy (%)", **bar)
    return figure


def accuracy_over_stream(records: Sequence[RunRecord]) -> Figure:
    """The all-class accuracy after each step; Upper Bound and the random initialisation as dashed lines."""
    random = random_accuracy(records)[1]
    return _over_stream(records, lambda matrix: matrix.all_class_total.tolist(), random, "accuracy on all classes (%)")


def first_step_over_stream(records: Sequence[RunRecord]) -> Figure:
    """The accuracy on the first step's data after each step: what is forgotten, seen from its beginning."""
    random = random_accuracy(records)[0][0]
    on_what = f"accuracy on {_name(records[0].step_names[0])} (%)"
    return _over_stream(records, lambda matrix: matrix.per_step[:, 0].tolist(), random, on_what)


def losses(record: RunRecord) -> Figure:
    """Each loss term's mean per epoch over the whole stream, with the steps' borders."""
    # An epoch that was repeated after an interruption counts as it was the last time.
    epochs = {(row["step"], row["epoch"]): row["losses"] for row in record.rows if row["kind"] == "epoch"}
    if not epochs:
        return _nothing("no epoch has ended yet")
    order = sorted(epochs)
    terms = list(dict.fromkeys(term for key in order for term in epochs[key]))
    with _drawing():
        figure = Figure(figsize=(8.4, 3.0))
        axes = figure.subplots()
        for number, term in enumerate(terms):
            curve = [_finite(epochs[key].get(term)) for key in order]
            colour = _LOSS_COLOURS[number % len(_LOSS_COLOURS)]
            axes.plot(range(1, len(order) + 1), curve, ".-", color=colour, markersize=4, linewidth=1.3, label=term)
        names = ["all steps at once"] if record.protocol.get("all_at_once") else record.step_names
        _mark_steps(axes, [step for step, _ in order], names)
        axes.set(xlabel="epoch of the stream", ylabel="loss", xlim=(0.5, len(order) + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        figure.legend(loc="outside right upper")
    return figure


def to_svg(figure: Figure) -> str:
    """Inline SVG: transparent, text and lines in the page's colour, the same text for the same figure."""
    file = io.StringIO()
    with _drawing():
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # Several figures stand in one page, where an id may exist once.
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{own}-", svg)


def to_png(figure: Figure, path: Path) -> None:
    """For documents: on white, at twice the size of a screen's pixel."""
    with _drawing():
        figure.savefig(path, format="png", dpi=160, facecolor="white", metadata={"Software": None})


@contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(_DRAWING), warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks are still right in a page, where the reader's fonts draw them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _over_stream(
    records: Sequence[RunRecord], curve_of: Callable[[AccuracyMatrix], list[float]], random: float, ylabel: str
) -> Figure:
    names = max((record.step_names for record in records), key=len)
    told: set[str] = set()  # runs that differ in their seed only share a colour and one entry of the legend
    with _drawing():
        figure = Figure(figsize=(7.4, 3.6))
        axes = figure.subplots()
        for name, record in zip(labels(records, with_seed=False), records, strict=True):
            curve = [] if record.accuracy is None else curve_of(record.accuracy)
            if all(map(math.isnan, curve)):
                continue
            colour, marker = STYLES.get(record.settings.strategy, (_GREY, "."))
            line: Any = {"color": colour, "linewidth": 1.6, "label": None if name in told else _name(name, 34)}
            told.add(name)
            if record.protocol.get("all_at_once"):
                axes.axhline(curve[-1], linestyle="--", **line)
            else:
                axes.plot(range(1, len(curve) + 1), curve, marker=marker, markersize=5, **line)
        if not math.isnan(random):
            axes.axhline(random, color=_GREY, linewidth=1.6, linestyle=(0, (2, 2)), label=RANDOM_TITLE)
        _name_ticks(axes, names, first=1)
        axes.set(xlabel="after learning", ylabel=ylabel, xlim=(0.7, len(names) + 0.3))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.grid(axis="y")
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right upper")
    return figure


def _heat_map(axes: Axes, values: NDArray[np.float64], scale: Normalize, colours: Colormap) -> None:
    edges = [np.arange(length + 1) - 0.5 for length in reversed(values.shape)]
    axes.pcolormesh(*edges, np.ma.masked_invalid(values), norm=scale, cmap=colours, edgecolors="face", linewidth=0.3)
    axes.invert_yaxis()
    axes.axhline(0.5, color=_INK, linewidth=0.8)  # above: before anything was learned
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            red, green, blue, _ = colours(scale(value))
            is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
            ink = "#111111" if is_light else "#ffffff"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=8)


def _name_ticks(axes: Axes, names: Sequence[str], first: int) -> None:
    """Names of steps below the axis from position `first` on; slanted where they would not fit side by side."""
    shown = [_name(name) for name in names]
    room = 6 if first == 0 else 56 // len(names)  # characters, below a cell or below a part of the whole width
    slant: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if max(map(len, shown)) > room else {}
    axes.set_xticks(range(first, first + len(names)), shown, **slant)


def _mark_steps(axes: Axes, step_of_epoch: Sequence[int], names: Sequence[str]) -> None:
    """A line between steps, and above each its name; only its number where many stand side by side."""
    for step in dict.fromkeys(step_of_epoch):
        start = step_of_epoch.index(step)  # epochs before it
        length = step_of_epoch.count(step)
        if start:
            axes.axvline(start + 0.5, color=_INK, alpha=0.4, linewidth=0.8)
        room = int(72 * length / len(step_of_epoch)) - 1  # characters
        name = names[step - 1] if step <= len(names) else str(step)
        label = _name(name, room) if room >= min(len(name), 9) else str(step)
        axes.text(
            start + 0.5 + length / 2, 1.02, label, transform=axes.get_xaxis_transform(), ha="center", fontsize=8.5
        )


def _nothing(reason: str) -> Figure:
    with _drawing():
        figure = Figure(figsize=(5.0, 0.6))
        figure.text(0.5, 0.5, reason, ha="center", va="center")
    return figure


def _name(name: str, longest: int = 18) -> str:
    """A name from outside as a label: printable, on one line, cut in its middle where it is long."""
    plain = "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in name)
    half = (longest - 1) // 2
    return plain if len(plain) <= longest else f"{plain[: longest - 1 - half]}…{plain[-half:]}"


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan
