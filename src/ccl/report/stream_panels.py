"""Many arms over the stream, a panel each: where one picture of all curves can't be read any more."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccl.report import measures
from ccl.report.comparisons import partners
from ccl.report.drawing import GREY, INK, arm_styles, drawing, short
from ccl.report.figures import matrices_of
from ccl.report.run_groups import Arm

MOST_CURVES = 8  # that one picture can show
_COLUMNS = 4
_PANEL = (2.6, 1.75)  # inches


def stream_panels(arms: Sequence[Arm], num_steps: int) -> Figure | None:
    """The all-class accuracy of each arm after each of T steps, beside its Finetuning and its Upper Bound.

    The best at the end comes first. None where no arm but these baselines was probed.
    """
    curves = {arm.name: curve for arm in arms if (curve := _curve(arm)) is not None}
    looks = {arm.name: look for arm, look in zip(arms, arm_styles(arms), strict=True)}
    shown = [arm for arm in arms if arm.name in curves and not (arm.strategy == "finetuning" or arm.is_all_at_once)]
    shown.sort(key=lambda arm: -_last(arm))
    if not shown:
        return None
    num_rows = math.ceil(len(shown) / _COLUMNS)
    places = np.arange(1, num_steps + 1)
    with drawing():
        figure = Figure(figsize=(_COLUMNS * _PANEL[0], num_rows * _PANEL[1] + 0.35))
        grid = figure.subplots(num_rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
        for arm, axes in zip(shown, grid, strict=False):
            for baseline in partners(arm, arms, "finetuning")[:1]:
                axes.plot(places, curves[baseline.name], color=GREY, linewidth=1.4, label="Finetuning")
            for top in partners(arm, arms, "upper_bound")[:1]:
                axes.axhline(_last(top), color=INK, linewidth=1.2, linestyle=(0, (5, 1.6)), label="Upper Bound")
            axes.plot(places, curves[arm.name], color=looks[arm.name].colour, linewidth=2.0)
            _name(axes, arm)
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        for axes in grid[max(0, len(shown) - _COLUMNS) : len(shown)]:  # nothing stands below these
            axes.tick_params(labelbottom=True)
        figure.supxlabel("after step", fontsize=9.5)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2)
        figure.supylabel("all classes (%)", fontsize=9.5)
    return figure


def _name(axes: Axes, arm: Arm) -> None:
    axes.set_title(f"{short(arm.name, 30)}: {_last(arm):.1f}", loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y")


def _curve(arm: Arm) -> list[float] | None:
    """Its accuracy after each step, mean over the seeds that reached it; None where it was not probed."""
    found = np.array([matrix.all_class_total.tolist() for matrix in matrices_of(arm)])  # (S, T)
    if not np.isfinite(found).any():
        return None
    counts = np.isfinite(found).sum(axis=0)
    sums = np.where(np.isfinite(found), found, 0.0).sum(axis=0)
    return [float(one) for one in np.divide(sums, counts, out=np.full(len(counts), math.nan), where=counts > 0)]


def _last(arm: Arm) -> float:
    """Its accuracy at the end, mean over seeds."""
    about = arm.estimate(measures.all_classes)
    return math.nan if about is None else about.mean
