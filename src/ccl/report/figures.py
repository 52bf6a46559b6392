"""A stream's numbers as figures: accuracy matrices, accuracies over the stream and losses over time."""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ccl.evaluation import AccuracyMatrix
from ccl.report.drawing import GREY, INK, SMALL, SPAN, ArmStyle, Size, arm_styles, drawing, short, span_at_least
from ccl.report.run_groups import Arm, records_of
from ccl.report.statistics import estimate
from ccl.report.summary import RANDOM_TITLE, random_accuracy
from ccl.runs.run_folder import RunRecord

CurveOf = Callable[[AccuracyMatrix], list[float]]
_LOSS_COLOURS = ("#0080c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MOST_DOTTED = 80  # epochs; beyond, dots hide the line and make the page heavy
_CELL = 0.5  # inches
_OPAQUE = 0.6  # of a cell at full colour
LOST, GAINED = "#d55e00", "#0080c6"
_TITLE = 38  # characters of a line above a matrix
_LEGEND, _HALF_LEGEND = 60, 24  # characters of a name in a legend of one column, of two


def matrices_of(arm: Arm) -> list[AccuracyMatrix]:
    """Those of the seeds that were probed."""
    found = [record.accuracy for record in arm.records if record.accuracy is not None]
    return [matrix for matrix in found if matrix.num_steps == len(arm.step_names)]


def mean_matrix(arm: Arm) -> tuple[NDArray[np.float64], str]:
    """The random encoder's row and the accuracy matrix, (1+T, T), mean over seeds, and in words of how many."""
    each = np.stack([np.vstack([matrix.random_per_step, matrix.per_step]) for matrix in matrices_of(arm)])
    counts = np.isfinite(each).sum(axis=0)  # (1+T, T)
    sums = np.where(np.isfinite(each), each, 0.0).sum(axis=0)
    mean = np.divide(sums, counts, out=np.full(counts.shape, math.nan), where=counts > 0)
    if len(each) == 1:
        return mean, ""
    fewest = int(counts[counts > 0].min(initial=len(each)))
    return mean, f"mean of {len(each)} seeds" if fewest == len(each) else f"mean of {fewest} to {len(each)} seeds"


def change_since_learned(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a matrix with its random row, (1+T, T): points above the diagonal's number, for past steps; nan elsewhere."""
    num_steps = mean.shape[1]
    is_past = np.tri(1 + num_steps, num_steps, k=-2, dtype=bool)  # a step's own row is one below the random one
    return np.where(is_past, mean - np.diagonal(mean[1:]), math.nan)


def full_change(arms: Sequence[Arm]) -> int:
    """The points at which a cell has its full colour: the largest change of all, in fives; so small ones stay pale."""
    changes = np.concatenate([change_since_learned(mean_matrix(arm)[0]).ravel() for arm in arms])
    largest = float(np.abs(changes[np.isfinite(changes)]).max(initial=0))
    return 5 * max(1, math.ceil(largest / 5))


def accuracy_matrix(arm: Arm, full: int) -> Figure:
    """The mean accuracy matrix of an arm, which must have one: the measured rows, coloured by the change since learned.

    The colour is that of the change, not of the accuracy: what random weights can read is not an achievement.
    """
    mean, words = mean_matrix(arm)
    # The arm's name, and of how many seeds it is the mean.
    title = [*textwrap.wrap(short(arm.name, 2 * _TITLE), _TITLE), *([words] if words else [])]
    last = "all at once" if arm.is_all_at_once else f"after step {len(mean) - 1}"
    labels = ["random", *(f"after step {number}" for number in range(1, len(mean) - 1)), last]
    shown = [row for row in range(len(mean)) if np.isfinite(mean[row]).any()]
    # At least as wide as the title needs, in inches.
    width = max(_CELL * len(arm.step_names), 0.075 * max(map(len, title)))
    with drawing():
        figure = Figure(figsize=(width + 1.2, _CELL * 0.85 * len(shown) + 0.85 + 0.17 * len(title)))
        axes = figure.subplots()
        _cells(axes, mean[shown], change_since_learned(mean)[shown], full)
        for place, row in enumerate(shown):
            if row and not arm.is_all_at_once:  # what was just learned
                frame: Any = {"fill": False, "edgecolor": INK, "linewidth": 0.7, "alpha": 0.6}
                axes.add_patch(Rectangle((row - 1.48, place - 0.48), 0.96, 0.96, **frame))
        axes.set_title("\n".join(title), loc="left")
        _name_ticks(axes, arm.step_names, first=0)
        axes.set_yticks(range(len(shown)), [labels[row] for row in shown])
        if shown[0] == 0:
            axes.axhline(0.5, color=INK, linewidth=0.8)  # above: before anything was learned
    return figure


def accuracy_over_stream(arms: Sequence[Arm], num_steps: int, size: Size = SMALL) -> Figure:
    """The all-class accuracy after each of T steps, mean and standard deviation over seeds."""
    random = random_accuracy(records_of(arms))[1]
    return _over_stream(arms, num_steps, lambda matrix: matrix.all_class_total.tolist(), random, "all classes", size)


def first_step_over_stream(arms: Sequence[Arm], num_steps: int) -> Figure:
    """The accuracy on the first step's data after each step: what is forgotten, seen from its beginning."""
    own = [arm for arm in arms if len(arm.step_names) == num_steps]  # another T has another first step
    random = random_accuracy(records_of(own))[0][0]
    names = dict.fromkeys(arm.step_names[0] for arm in own)
    on_what = short(next(iter(names))) if len(names) == 1 else "the first step"
    return _over_stream(own, num_steps, lambda matrix: matrix.per_step[:, 0].tolist(), random, on_what, SMALL)


def losses(record: RunRecord) -> Figure | None:
    """Each loss term's mean per epoch over the whole stream, with the steps' borders; None before the first epoch."""
    # Of an epoch that was repeated after an interruption, the last row is used.
    epochs = {(row["step"], row["epoch"]): row["losses"] for row in record.rows if row["kind"] == "epoch"}
    if not epochs:
        return None
    order = sorted(epochs)
    terms = list(dict.fromkeys(term for key in order for term in epochs[key]))
    with drawing():
        figure = Figure(figsize=(8.4, 3.2))
        axes = figure.subplots()
        points = ".-" if len(order) <= _MOST_DOTTED else "-"
        for number, term in enumerate(terms):
            curve = [_finite(epochs[key].get(term)) for key in order]
            colour = _LOSS_COLOURS[number % len(_LOSS_COLOURS)]
            line: Any = {"color": colour, "markersize": 4, "linewidth": 1.3, "label": short(term, 24)}
            axes.plot(range(1, len(order) + 1), curve, points, **line)
        names = ["all steps at once"] if record.protocol.get("all_at_once") else record.step_names
        _mark_steps(axes, [step for step, _ in order], names)
        axes.set(xlabel="epoch of the stream", ylabel="loss", xlim=(0.5, len(order) + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        figure.legend(loc="outside lower left", ncols=4)
    return figure


def _over_stream(
    arms: Sequence[Arm], num_steps: int, curve_of: CurveOf, random: float, on_what: str, size: Size
) -> Figure:
    width, height = size
    with drawing():
        longest = max(len(arm.name) for arm in arms)
        num_columns = max(1, int(width / SMALL[0] * (2 if longest <= _HALF_LEGEND else 1)))
        num_lines = math.ceil((len(arms) + 1) / num_columns)
        figure = Figure(figsize=(width, height + 0.2 * num_lines))  # with room for the legend
        axes = figure.subplots()
        for arm, style in zip(arms, arm_styles(arms), strict=True):
            curves = np.array([curve_of(matrix) for matrix in matrices_of(arm)])  # (S, T)
            if not np.isfinite(curves).any():
                continue
            if arm.is_all_at_once:
                _level(axes, short(arm.name, _LEGEND), style, curves[:, -1])
            else:
                _curve(axes, short(arm.name, _LEGEND), style, curves, num_bands=len(arms))
        if not math.isnan(random):
            axes.axhline(random, color=GREY, linewidth=1.6, linestyle=(0, (1, 1.6)), label=RANDOM_TITLE)
        _name_ticks(axes, _step_names(arms, num_steps), first=1)
        axes.set(xlabel="after learning", ylabel=f"accuracy on {on_what} (%)", xlim=(0.7, num_steps + 0.3))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        span_at_least(axes, SPAN)
        axes.grid(axis="y")
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower left", ncols=num_columns, handlelength=2.6)
    return figure


def _curve(axes: Axes, name: str, style: ArmStyle, curves: NDArray[np.float64], num_bands: int) -> None:
    """The mean of the seeds that reached each step, with a band of one standard deviation to either side."""
    found = [estimate(column.tolist()) for column in curves.T]
    places = np.arange(1, len(found) + 1)
    mean, std = (np.array([getattr(about, part) for about in found]) for part in ("mean", "std"))
    filling = {"markerfacecolor": "none"} if style.is_hollow else {}
    line: Any = {"color": style.colour, "linewidth": 1.6, "linestyle": style.line, "label": name, **filling}
    axes.plot(places, mean, marker=style.marker, markersize=5, **line)
    if np.isfinite(std).any():
        alpha = min(0.16, 0.8 / num_bands)  # many bands, each fainter, so that lines stay visible
        axes.fill_between(places, mean - std, mean + std, color=style.colour, alpha=alpha, linewidth=0)


def _level(axes: Axes, name: str, style: ArmStyle, values: NDArray[np.float64]) -> None:
    about = estimate(values.tolist())
    axes.axhline(about.mean, color=style.colour, linewidth=1.6, linestyle=style.line, label=name)
    if math.isfinite(about.std):
        axes.axhspan(about.mean - about.std, about.mean + about.std, color=style.colour, alpha=0.1, linewidth=0)


def _step_names(arms: Sequence[Arm], num_steps: int) -> list[str]:
    """The steps' names where all arms agree, else their numbers."""
    names = {tuple(arm.step_names) for arm in arms if len(arm.step_names) == num_steps}
    return list(names.pop()) if len(names) == 1 else [f"step {number}" for number in range(1, num_steps + 1)]


def _cells(axes: Axes, values: NDArray[np.float64], changes: NDArray[np.float64], full: int) -> None:
    """A number per cell; below it, and as its colour, the change. Colours are thin enough for ink on light and dark."""
    axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(len(values) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        change = changes[row, column]
        if math.isfinite(change):
            look: Any = {
                "color": LOST if change < 0 else GAINED,
                "alpha": _OPAQUE * min(1.0, float(abs(change)) / full),
            }
            axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, linewidth=0, **look))
            axes.text(column, row + 0.26, f"{change:+z.1f}", ha="center", va="center", fontsize=6.5)
        if math.isfinite(value):
            above = 0.14 if math.isfinite(change) else 0.0
            axes.text(column, row - above, f"{value:.1f}", ha="center", va="center", fontsize=8)


def _name_ticks(axes: Axes, names: Sequence[str], first: int) -> None:
    """Names of steps below the axis from position `first` on; slanted where they would not fit side by side."""
    shown = [short(name) for name in names]
    room = 6 if first == 0 else 60 // len(names)  # characters, below a cell or below a part of the whole width
    slant: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if max(map(len, shown)) > room else {}
    axes.set_xticks(range(first, first + len(names)), shown, **slant)


def _mark_steps(axes: Axes, step_of_epoch: Sequence[int], names: Sequence[str]) -> None:
    """A line between steps, and above each its name; only its number where many stand side by side."""
    for step in sorted(set(step_of_epoch)):
        start, length = step_of_epoch.index(step), step_of_epoch.count(step)
        if start:
            axes.axvline(start + 0.5, color=INK, alpha=0.4, linewidth=0.8)
        room = int(72 * length / len(step_of_epoch)) - 1  # characters
        name = names[step - 1] if step <= len(names) else str(step)
        label = short(name, room) if room >= min(len(name), 9) else str(step)
        place: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8.5}
        axes.text(start + 0.5 + length / 2, 1.02, label, **place)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan
