"""Dots and forest: every position computed by hand, and verdicts that are the table's own."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes

from ccl.report.arm_table import comparisons, differences
from ccl.report.arms import forgotten, make_arms
from ccl.report.drawings import dots, forest
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]  # Forgetting ((80-60)+(84-72))/2 = 16
LESS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [70, 78, 90]]  # ((80-70)+(84-78))/2 = 8
T_1, T_2 = 12.7062, 4.30265  # Student's t at 97.5 %, for two and for three seeds


def points(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Of all lines with this marker."""
    lines = [line for line in axes.get_lines() if line.get_marker() == marker and line.get_linestyle() == "None"]
    return [(float(x), float(y)) for line in lines for x, y in np.asarray(line.get_xydata())]


def bars(axes: Axes) -> list[list[list[float]]]:
    """Ends of the drawn intervals; the line at zero is none."""
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines() if line.get_marker() == "None"]
    return [line for line in lines if line[0][1] == line[1][1]]


def test_dots_show_mean_interval_and_seeds(record_of: Make) -> None:
    runs = [record_of("ccl", FORGETS), record_of("ccl", LESS, "seed=1"), record_of("finetuning", LESS)]
    at_once = record_of("upper_bound", [FORGETS[0], None, None, FORGETS[3]])
    figure = dots(make_arms([*runs, at_once]), forgotten, "Forgetting")
    assert figure is not None
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["CCL", "Finetuning"]  # Upper Bound has none
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # from top to bottom
    assert points(axes, "D") == [(12, 0)]
    # CCL's seeds, below its mean, and Finetuning's only one, which is its mean.
    assert points(axes, "o") == [(16, 0.25), (8, 0.25), (8, 1)]
    half = T_1 * (8 / math.sqrt(2)) / math.sqrt(2)  # a standard deviation of |a - b| / √2
    assert bars(axes) == [[[pytest.approx(12 - half, rel=1e-4), 0], [pytest.approx(12 + half, rel=1e-4), 0]]]


def test_without_the_number_there_are_no_dots(record_of: Make) -> None:
    assert dots(make_arms([record_of("ccl", [[30], [80]], names=["a"])]), forgotten, "") is None


def compared(record_of: Make) -> list[RunRecord]:
    """All classes: half the accuracy. CCL is 1, 2 and 3 above Finetuning, variance sampling 9.9, 10 and 10.1."""
    runs = []
    for seed, (base, small, large) in enumerate([(40, 42, 59.8), (50, 54, 70), (44, 50, 64.2)]):
        for strategy, value in (("finetuning", base), ("ccl", small), ("variance_rehearsal", large)):
            runs.append(record_of(strategy, [[20], [value]], f"seed={seed}", names=["a"]))
    return runs


def forest_of(runs: list[RunRecord]) -> Axes:
    figure = forest(make_arms(runs))
    assert figure is not None
    return figure.axes[0]


def test_without_finetuning_there_is_no_forest(record_of: Make) -> None:
    assert forest(make_arms([run for run in compared(record_of) if run.settings.strategy != "finetuning"])) is None


def test_the_forest_stands_where_the_paired_differences_are(record_of: Make) -> None:
    axes = forest_of(compared(record_of))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["CCL", "+ variance sampling"]
    assert points(axes, "D") == [(pytest.approx(2), 0)]
    assert points(axes, "^") == [(pytest.approx(10), 1)]
    wide, narrow = T_2 * 1.0 / math.sqrt(3), T_2 * 0.1 / math.sqrt(3)
    assert bars(axes) == [
        [[pytest.approx(2 - wide, rel=1e-4), 0], [pytest.approx(2 + wide, rel=1e-4), 0]],
        [[pytest.approx(10 - narrow, rel=1e-4), 1], [pytest.approx(10 + narrow, rel=1e-4), 1]],
    ]
    assert [text.get_text() for text in axes.texts] == ["+2.0 (-0.5 to 4.5)", "+10.0 (9.8 to 10.2)"]
    zero = next(line for line in axes.get_lines() if list(line.get_xdata()) == [0, 0])
    assert list(zero.get_ydata()) == [0, 1]  # over the whole height


def test_arms_that_no_test_tells_from_finetuning_are_hollow(record_of: Make) -> None:
    axes = forest_of(compared(record_of))
    filling = {line.get_marker(): line.get_markerfacecolor() for line in axes.get_lines()}
    assert filling["D"] == "none"
    assert filling["^"] == "#56b4e9"


def test_the_verdict_is_that_of_the_table_with_all_its_tests(record_of: Make) -> None:
    """CCL is 2, 3 and 3.5 above Finetuning: p is 0.02 alone, and no longer small among the three tests of the table."""
    runs = []
    for seed, values in enumerate([(40, 44, 41), (50, 56, 50), (44, 51, 47)]):
        for strategy, value in zip(("finetuning", "ccl", "simple_rehearsal"), values, strict=True):
            runs.append(record_of(strategy, [[20], [value]], f"seed={seed}", names=["a"]))
    first = comparisons(make_arms(runs))[0]
    assert (first.arm.name, first.baseline.name) == ("CCL", "Finetuning")
    assert first.difference.p_value == pytest.approx(0.0234, abs=1e-4)
    assert first.words == differences(make_arms(runs)).rows[0][6] == "not distinguishable"
    axes = forest_of(runs)
    assert len(axes.texts) == 2  # the test against Simple Rehearsal is not shown
    assert [line.get_markerfacecolor() for line in axes.get_lines() if line.get_marker() == "D"] == ["none"]


def test_only_equal_seeds_are_compared(record_of: Make) -> None:
    runs = [record_of("finetuning", [[20], [40]], "seed=1", names=["a"])]
    runs += [record_of("ccl", [[20], [value]], f"seed={seed}", names=["a"]) for seed, value in ((0, 90), (1, 50))]
    (comparison,) = comparisons(make_arms(runs))
    assert (comparison.difference.mean, comparison.difference.num) == (5, 1)
    axes = forest_of(runs)
    assert bars(axes) == []
    assert [text.get_text() for text in axes.texts] == ["+5.0"]


def test_a_hundredth_of_a_point_does_not_look_large(record_of: Make) -> None:
    rows = [[30, 32], [80.02, 40], [80, 84]]  # forgets 0.02
    figure = dots(make_arms([record_of("ccl", rows, names=("a", "b"))]), forgotten, "Forgetting")
    assert figure is not None
    low, high = figure.axes[0].get_xlim()
    assert low <= -1
    assert high >= 1
