"""Numbers with their intervals, an arm a row: what each arm reached, and how far it is from Finetuning."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccl.report.comparisons import comparisons
from ccl.report.drawing import INK, drawing, short, strategy_styles
from ccl.report.run_groups import Arm, Measure
from ccl.report.statistics import Estimate, estimate
from ccl.report.tables import interval

_ROW = 0.36  # inches
_NAME = 36  # characters
_BELOW = 0.25  # of a row: single seeds stand below their mean


def dots(arms: Sequence[Arm], measure: Measure, label: str) -> Figure | None:
    """A row per arm: the mean with its 95 % interval, and the single seeds below; None where no arm has the number."""
    shown = [(arm, list(found.values())) for arm in arms if (found := arm.values(measure))]
    if not shown:
        return None
    styles = strategy_styles(arms)
    with drawing():
        figure, axes = _rows([arm for arm, _ in shown], width=2.9)
        for row, (arm, values) in enumerate(shown):
            _point(axes, row, estimate(values), styles[arm.strategy], markersize=6)
            if len(values) > 1:
                small: Any = {"color": styles[arm.strategy][0], "markersize": 2.8, "markeredgewidth": 0}
                axes.plot(values, [row + _BELOW] * len(values), "o", **small)
        _widen(axes)
        axes.set_xlabel(label)
    return figure


def forest(arms: Sequence[Arm]) -> Figure | None:
    """A row per comparison with Finetuning: difference and 95 % interval; filled where a test finds one."""
    shown = [comparison for comparison in comparisons(arms) if comparison.baseline.strategy == "finetuning"]
    if not shown:
        return None
    styles = strategy_styles(arms)
    with drawing():
        figure, axes = _rows([comparison.arm for comparison in shown], width=4.2)
        for row, comparison in enumerate(shown):
            about = comparison.difference
            filling = {} if comparison.words in ("better", "worse") else {"markerfacecolor": "none"}
            _point(axes, row, about, styles[comparison.arm.strategy], markersize=7, **filling)
            bounds = interval(about.low, about.high)
            words = f"{about.mean:+z.1f}" + ("" if bounds is None else f"  ({bounds})")
            axes.text(1.03, row, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
        _widen(axes)
        axes.set_xlabel("difference to Finetuning (percentage points, all classes)")
    return figure


def _rows(arms: Sequence[Arm], width: float) -> tuple[Figure, Axes]:
    """Axes with the arms' names on the left, from top to bottom, and a line at zero."""
    names = [short(arm.name, _NAME) for arm in arms]
    figure = Figure(figsize=(width + 0.075 * max(map(len, names)), _ROW * len(arms) + 0.75))
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=0.9, alpha=0.55)
    axes.set_yticks(range(len(arms)), names)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return figure, axes


def _widen(axes: Axes) -> None:
    """A point to either side of zero at least, so that a hundredth of one doesn't look large."""
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1.0), max(high, 1.0))


def _point(axes: Axes, row: int, about: Estimate, style: tuple[str, str], **look: Any) -> None:
    """A mean, on its interval where it has one."""
    colour, marker = style
    if not math.isnan(about.low):
        axes.plot([about.low, about.high], [row, row], "-", color=colour, linewidth=1.6, solid_capstyle="butt")
    # What is a line without markers elsewhere is a point here.
    axes.plot([about.mean], [row], marker or "o", color=colour, linestyle="none", **look)
