"""Accuracy against a number that is varied: the size of a queue, clusters, steps of the stream."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from ccl.catalogue import title_of
from ccl.compatibility import matters
from ccl.report import measures
from ccl.report.drawing import SMALL, SPAN, Size, arm_styles, drawing, span_at_least
from ccl.report.run_groups import Arm, flat, records_of, varied_settings
from ccl.report.statistics import Estimate
from ccl.strategies import strategy_title

_FEWEST = 3  # values that make an axis
_TITLES = {"steps": "number of steps T", "memory.clusters": "number of clusters K"}


def varied_number(arms: Sequence[Arm]) -> str | None:
    """The setting an axis can show: the only one varied beside strategy and objective, with at least three numbers."""
    names = [name for name in varied_settings(records_of(arms)) if name not in ("strategy", "objective", "seed")]
    if len(names) != 1:
        return None
    values = {_value(arm, names[0]) for arm in arms}
    return names[0] if len({value for value in values if value is not None}) >= _FEWEST else None


def accuracy_against(arms: Sequence[Arm], name: str, size: Size = SMALL) -> Figure:
    """A line per strategy and objective, with 95 % intervals; arms that don't depend on the number as levels."""
    curves: dict[tuple[str, str], list[tuple[float, Estimate]]] = {}
    firsts: dict[tuple[str, str], Arm] = {}
    for arm in arms:
        value, about = _value(arm, name), arm.estimate(measures.all_classes)
        if about is not None:
            key: tuple[str, str] = (arm.strategy, arm.settings.objective)
            curves.setdefault(key, []).append((math.nan if value is None else value, about))
            firsts.setdefault(key, arm)
    has_objectives = len({objective for _, objective in curves}) > 1
    with drawing():
        figure = Figure(figsize=size)
        axes = figure.subplots()
        for ((strategy, objective), points), look in zip(curves.items(), arm_styles([*firsts.values()]), strict=True):
            label = strategy_title(strategy) + (f", {title_of(objective)}" if has_objectives else "")
            style: Any = {"color": look.colour, "linewidth": 1.6, "label": label}
            if len(points) == 1:
                axes.axhline(points[0][1].mean, linestyle="--", **style)
                continue
            points.sort(key=lambda point: point[0])
            reach = [0.0 if math.isnan(about.low) else about.high - about.mean for _, about in points]
            heights = [about.mean for _, about in points]
            axes.errorbar([x for x, _ in points], heights, reach, marker=look.marker or "o", capsize=2.5, **style)
        ticks = sorted({x for points in curves.values() for x, _ in points if not math.isnan(x)})
        if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set(xlabel=_TITLES.get(name, name), ylabel="all classes (%)")
        span_at_least(axes, SPAN)
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def _value(arm: Arm, name: str) -> float | None:
    """The number of an arm; None where it has none, doesn't look at it, or learns all at once and knows no steps."""
    if name == "steps":
        return None if arm.is_all_at_once else float(len(arm.step_names))
    if not matters(name, arm.strategy, arm.settings.objective):
        return None
    value = flat(arm.settings)[name]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
