"""The report's drawings: accuracy over the stream, matrices, losses, intervals, and accuracy against a number."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from ccl.catalogue import title_of
from ccl.evaluation import AccuracyMatrix
from ccl.report.arm_table import RANDOM_TITLE, comparisons
from ccl.report.arms import Arm, records_of
from ccl.report.measures import all_classes, random_accuracy
from ccl.report.seed_statistics import Estimate, estimate
from ccl.report.svg_figures import GREY, INK, ArmStyle, arm_styles, drawing, short, strategy_style
from ccl.report.tables import text
from ccl.runs.run_folder import RunRecord
from ccl.strategies import strategy_title

_SIZE = (5.5, 3.3)  # inches, without the legend: can be read on a phone
LOST, GAINED = "#d55e00", "#0080c6"
MOST_CURVES = 8  # that one picture can show
_SPAN = 10.0  # points of accuracy that an axis shows at least, so that one of them doesn't look large
_CELL, _ROW = 0.5, 0.36  # inches
FULL_CHANGE = 20  # points at which a matrix's cell has its full colour
_OPAQUE = 0.6  # of a matrix's cell at full colour
_TITLE, _LEGEND, _HALF_LEGEND, _NAME = 38, 60, 24, 36  # characters of names: above a matrix, in legends, beside a row
_MOST_DOTTED = 80  # epochs; beyond, dots hide the line and make the page heavy
_FEWEST = 3  # values that make an axis
_AXIS_TITLES = {"steps": "number of steps T", "memory.clusters": "number of clusters K"}
_LOSS_COLOURS = ("#0080c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def matrices_of(arm: Arm) -> list[AccuracyMatrix]:
    """The accuracy matrices of the seeds that were probed."""
    found = [record.accuracy for record in arm.records if record.accuracy is not None]
    return [matrix for matrix in found if matrix.num_steps == len(arm.step_names)]


def accuracy_over_stream(arms: Sequence[Arm], num_steps: int) -> Figure:
    """The all-class accuracy after each of T steps, mean and standard deviation over seeds."""
    random = random_accuracy(records_of(arms))[1]
    styles = dict(zip((arm.name for arm in arms), arm_styles(arms), strict=True))
    arms = _for_one_picture(arms)
    num_columns = 2 if max(len(arm.name) for arm in arms) <= _HALF_LEGEND else 1
    num_lines = math.ceil((len(arms) + 1) / num_columns)
    with drawing():
        figure = Figure(figsize=(_SIZE[0], _SIZE[1] + 0.2 * num_lines))  # with room for the legend
        axes = figure.subplots()
        for arm in arms:
            curves = np.array([matrix.all_class_total.tolist() for matrix in matrices_of(arm)])  # (S, T)
            if np.isfinite(curves).any():
                _curve(axes, arm, styles[arm.name], curves, alpha=min(0.16, 0.8 / len(arms)))
        if not math.isnan(random):
            axes.axhline(random, color=GREY, linewidth=1.6, linestyle=(0, (1, 1.6)), label=RANDOM_TITLE)
        names = {tuple(arm.step_names) for arm in arms if len(arm.step_names) == num_steps}
        numbered = [f"step {number}" for number in range(1, num_steps + 1)]  # where the arms' names differ
        _name_ticks(axes, list(names.pop()) if len(names) == 1 else numbered, first=1)
        axes.set(xlabel="after learning", ylabel="accuracy on all classes (%)", xlim=(0.7, num_steps + 0.3))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        _widen(axes)
        axes.grid(axis="y")
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower left", ncols=num_columns, handlelength=2.6)
    return figure


def _for_one_picture(arms: Sequence[Arm]) -> Sequence[Arm]:
    """All if one picture can show them, else the baselines and the most accurate of the others."""

    def place(arm: Arm) -> tuple[bool, float]:
        accuracy = arm.mean(all_classes)
        is_baseline = arm.strategy == "finetuning" or arm.is_all_at_once
        return not is_baseline, math.inf if math.isnan(accuracy) else -accuracy

    return arms if len(arms) <= MOST_CURVES else sorted(arms, key=place)[:MOST_CURVES]


def _curve(axes: Axes, arm: Arm, style: ArmStyle, curves: NDArray[np.float64], alpha: float) -> None:
    """The mean of the seeds' curves (S, T), with a band of one standard deviation; what has no steps: a level."""
    colour, marker, line_style = style
    line: Any = {"color": colour, "linewidth": 1.6, "linestyle": line_style, "label": short(arm.name, _LEGEND)}
    if arm.is_all_at_once:
        last = estimate(curves[:, -1].tolist())
        axes.axhline(last.mean, **line)
        if math.isfinite(last.std):
            axes.axhspan(last.mean - last.std, last.mean + last.std, color=colour, alpha=0.1, linewidth=0)
        return
    found = [estimate(column.tolist()) for column in curves.T]
    mean, std = np.array([about.mean for about in found]), np.array([about.std for about in found])
    places = np.arange(1, len(found) + 1)
    axes.plot(places, mean, marker=marker, markersize=5, **line)
    if np.isfinite(std).any():
        axes.fill_between(places, mean - std, mean + std, color=colour, alpha=alpha, linewidth=0)


def accuracy_matrix(arm: Arm) -> Figure:
    """The mean accuracy matrix of an arm, which must have one: measured rows, coloured by the change since learned."""
    each = np.stack([np.vstack([one.random_per_step, one.per_step]) for one in matrices_of(arm)])  # (S, 1+T, T)
    counts = np.isfinite(each).sum(axis=0)
    mean = np.where(counts > 0, np.nansum(each, axis=0) / np.maximum(counts, 1), math.nan)
    fewest = int(counts[counts > 0].min(initial=len(each)))
    seeds = f"{len(each)} seeds" if fewest == len(each) else f"{fewest} to {len(each)} seeds"
    title = textwrap.wrap(short(arm.name, 2 * _TITLE), _TITLE) + [f"mean of {seeds}"] * (len(each) > 1)
    last = "all at once" if arm.is_all_at_once else f"after step {len(mean) - 1}"
    labels = ["random", *(f"after step {number}" for number in range(1, len(mean) - 1)), last]
    shown = [row for row in range(len(mean)) if np.isfinite(mean[row]).any()]
    # At least as wide as the title needs, in inches.
    width = max(_CELL * len(arm.step_names), 0.075 * max(map(len, title)))
    with drawing():
        figure = Figure(figsize=(width + 1.2, _CELL * 0.85 * len(shown) + 0.85 + 0.17 * len(title)))
        axes = figure.subplots()
        is_past = np.tri(len(mean), len(mean) - 1, k=-2, dtype=bool)  # a step's own row is one below the random one
        changes = np.where(is_past, mean - np.diagonal(mean[1:]), math.nan)
        _cells(axes, mean[shown], changes[shown])
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


def _cells(axes: Axes, values: NDArray[np.float64], changes: NDArray[np.float64]) -> None:
    """A number per cell; below it, and as its colour, the change. Colours are thin enough for ink on light and dark."""
    axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(len(values) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        change = float(changes[row, column])
        if math.isfinite(change):
            alpha = _OPAQUE * min(1.0, abs(change) / FULL_CHANGE)
            look: Any = {"color": LOST if change < 0 else GAINED, "alpha": alpha, "linewidth": 0}
            axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, **look))
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


def _widen(axes: Axes) -> None:
    """The vertical axis, evenly, to the points that it shows at least."""
    low, high = axes.get_ylim()
    missing = max(0.0, _SPAN - (high - low)) / 2
    axes.set_ylim(low - missing, high + missing)


def losses(record: RunRecord) -> Figure | None:
    """Each loss term's mean per epoch over the whole stream, with the steps' borders; None before the first epoch."""
    # Of an epoch that was repeated after an interruption, the last row is used.
    epochs = {(row["step"], row["epoch"]): row["losses"] for row in record.rows if row["kind"] == "epoch"}
    if not epochs:
        return None
    order = sorted(epochs)
    terms = dict.fromkeys(term for key in order for term in epochs[key])
    with drawing():
        figure = Figure(figsize=(8.4, 3.2))
        axes = figure.subplots()
        points = ".-" if len(order) <= _MOST_DOTTED else "-"
        for number, term in enumerate(terms):
            known = [epochs[key].get(term) for key in order]
            curve = [math.nan if value is None or not math.isfinite(value) else value for value in known]
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


def forest(arms: Sequence[Arm]) -> Figure | None:
    """A row per comparison with Finetuning: difference and 95 % interval; filled where a test finds one."""
    shown = [comparison for comparison in comparisons(arms) if comparison.kind == "finetuning"]
    if not shown:
        return None
    names = [short(comparison.arm.name, _NAME) for comparison in shown]
    with drawing():
        figure = Figure(figsize=(4.2 + 0.075 * max(map(len, names)), _ROW * len(shown) + 0.75))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.9, alpha=0.55)
        for row, comparison in enumerate(shown):
            about, (colour, marker) = comparison.difference, strategy_style(comparison.arm.strategy)
            filling: Any = {} if comparison.words in ("better", "worse") else {"markerfacecolor": "none"}
            if not math.isnan(about.low):
                axes.plot([about.low, about.high], [row, row], "-", color=colour, linewidth=1.6, solid_capstyle="butt")
            # What is a line without markers elsewhere is a point here.
            axes.plot([about.mean], [row], marker or "o", color=colour, markersize=7, linestyle="none", **filling)
            place: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 9}
            axes.text(1.03, row, text(about), **place)
        axes.set_yticks(range(len(shown)), names)
        axes.set(ylim=(len(shown) - 0.4, -0.6), xlabel="difference to Finetuning (percentage points, all classes)")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -1.0), max(high, 1.0))  # so that a hundredth of a point doesn't look large
    return figure


def varied_number(arms: Sequence[Arm]) -> str | None:
    """The setting of an axis: the only one that is crossed, or the number of steps, with at least three numbers."""
    names = {name for arm in arms for name in arm.crossed}
    has_steps = len({len(arm.step_names) for arm in arms if not arm.is_all_at_once}) > 1
    name = "steps" if has_steps else next(iter(names), "")
    is_only_one = len(names) + has_steps == 1
    return name if is_only_one and len({_number(arm, name) for arm in arms} - {None}) >= _FEWEST else None


def _number(arm: Arm, name: str) -> float | None:
    """An arm's place on an axis; None where it has none, or learns all at once and knows no steps."""
    value = len(arm.step_names) if name == "steps" and not arm.is_all_at_once else arm.crossed.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def accuracy_against(arms: Sequence[Arm], name: str) -> Figure:
    """A line per strategy and objective, with 95 % intervals; arms that don't depend on the number as levels."""
    curves: dict[tuple[str, str], list[tuple[float, Estimate]]] = {}
    firsts: dict[tuple[str, str], Arm] = {}
    for arm in arms:
        value, about = _number(arm, name), arm.estimate(all_classes)
        if about is not None:
            key: tuple[str, str] = (arm.strategy, arm.settings.objective)
            curves.setdefault(key, []).append((math.nan if value is None else value, about))
            firsts.setdefault(key, arm)
    has_objectives = len({objective for _, objective in curves}) > 1
    with drawing():
        figure = Figure(figsize=_SIZE)
        axes = figure.subplots()
        looks = arm_styles([*firsts.values()])
        for ((strategy, objective), points), (colour, marker, _) in zip(curves.items(), looks, strict=True):
            label = strategy_title(strategy) + (f", {title_of(objective)}" if has_objectives else "")
            style: Any = {"color": colour, "linewidth": 1.6, "label": label}
            if len(points) == 1:
                axes.axhline(points[0][1].mean, linestyle="--", **style)
                continue
            points.sort(key=lambda point: point[0])
            reach = [0.0 if math.isnan(about.low) else about.high - about.mean for _, about in points]
            heights = [about.mean for _, about in points]
            axes.errorbar([x for x, _ in points], heights, reach, marker=marker or "o", capsize=2.5, **style)
        ticks = sorted({x for points in curves.values() for x, _ in points if not math.isnan(x)})
        if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set(xlabel=_AXIS_TITLES.get(name, name), ylabel="all classes (%)")
        _widen(axes)
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
