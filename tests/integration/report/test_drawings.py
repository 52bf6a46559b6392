"""The drawings: numbers, means over seeds, bands, intervals and verdicts, each computed by hand."""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from ccl.report.arm_table import comparisons, differences
from ccl.report.arms import Arm, make_arms, of_equal_steps
from ccl.report.drawings import (
    MOST_CURVES,
    accuracy_against,
    accuracy_matrix,
    accuracy_over_stream,
    forest,
    losses,
    varied_number,
)
from ccl.report.run_page import write_page
from ccl.report.svg_figures import arm_styles, to_svg
from ccl.runs.run_folder import RunRecord
from ccl.strategies import STRATEGIES

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
OTHER = [[34, 36, 38], [84, 46, 47], [76, 80, 60], [66, 72, 96]]  # another seed's
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]


def raised(by: float) -> list[list[float]]:
    return [FORGETS[0], *([value + 2 * by for value in row] for row in FORGETS[1:])]


def lines_of(figure: Figure) -> dict[str, list[float]]:
    """Label and heights of each labelled line."""
    lines = figure.axes[0].get_lines()
    return {str(line.get_label()): [float(y) for y in np.asarray(line.get_ydata())] for line in lines}


def accuracies_in(figure: Figure) -> list[str]:
    """The numbers in a matrix's cells, row by row, without the changes, which are signed."""
    return [text.get_text() for text in sorted_texts(figure) if text.get_text()[0] not in "+-"]


def sorted_texts(figure: Figure) -> list[Text]:
    return sorted(figure.axes[0].texts, key=lambda text: (round(text.get_position()[1]), text.get_position()[0]))


@pytest.fixture
def arms(record_of: Make) -> list[Arm]:
    return make_arms([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])


def test_matrices_print_each_number_once_and_only_measured_rows(arms: list[Arm]) -> None:
    one, other = (accuracy_matrix(arm) for arm in arms)
    assert accuracies_in(one) == [f"{value:.1f}" for row in FORGETS for value in row]
    assert accuracies_in(other) == ["30.0", "32.0", "34.0", "90.0", "92.0", "94.0"]
    names = [[label.get_text() for label in figure.axes[0].get_yticklabels()] for figure in (one, other)]
    assert names == [["random", *(f"after step {i}" for i in (1, 2, 3))], ["random", "all at once"]]
    assert [label.get_text() for label in one.axes[0].get_xticklabels()] == ["digits", "capitals", "greek"]
    titles = [figure.axes[0].get_title(loc="left") for figure in (one, other)]
    assert titles == ["Finetuning", "Upper Bound"]  # one seed: no mean
    assert one.axes[0].get_ylim()[0] > one.axes[0].get_ylim()[1]  # the random row stands on top


def test_a_cells_colour_is_the_change_since_its_step_was_learned(arms: list[Arm]) -> None:
    """Digits: 80 when learned, then 70 and 60; capitals: 84, then 72. What random weights reach has no colour."""
    axes = accuracy_matrix(arms[0]).axes[0]
    changes = [text for text in sorted_texts(axes.figure) if text.get_text()[0] in "+-"]
    assert [text.get_text() for text in changes] == ["-10.0", "-20.0", "-12.0"]
    filled = {(round(p.get_x() + 0.48), round(p.get_y() + 0.48)): p for p in rectangles(axes) if p.get_fill()}
    assert {place: patch.get_alpha() for place, patch in filled.items()} == {
        (0, 2): pytest.approx(0.3),
        (0, 3): pytest.approx(0.6),
        (1, 3): pytest.approx(0.36),
    }
    framed = [(round(p.get_x() + 0.48), round(p.get_y() + 0.48)) for p in rectangles(axes) if not p.get_fill()]
    assert framed == [(0, 1), (1, 2), (2, 3)]
    assert not rectangles(accuracy_matrix(arms[1]).axes[0])  # learned at once: nothing is past


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_a_matrix_is_the_mean_over_the_seeds_that_have_a_number(record_of: Make) -> None:
    whole = [record_of("ccl", FORGETS), record_of("ccl", OTHER, "seed=1")]
    figure = accuracy_matrix(make_arms(whole)[0])
    means = [(a + b) / 2 for one, two in zip(FORGETS, OTHER, strict=True) for a, b in zip(one, two, strict=True)]
    assert accuracies_in(figure) == [f"{value:.1f}" for value in means]
    assert figure.axes[0].get_title(loc="left") == "CCL\nmean of 2 seeds"

    stopped = record_of("ccl", [[40, 42, 44], [90, 60, 61], None, None], "seed=2", state="stopped")
    figure = accuracy_matrix(make_arms([*whole, stopped])[0])
    shown = [float(text) for text in accuracies_in(figure)]
    assert shown[3] == pytest.approx((80 + 84 + 90) / 3, abs=0.05)
    assert shown[-1] == 93.0  # of the two that came so far
    assert figure.axes[0].get_title(loc="left") == "CCL\nmean of 2 to 3 seeds"


def test_curves_are_the_columns_they_name(arms: list[Arm]) -> None:
    everything = lines_of(accuracy_over_stream(arms, 3))
    assert everything["Finetuning"] == pytest.approx([(80 + 40 + 45) / 6, (70 + 84 + 50) / 6, 37])
    assert everything["Upper Bound"] == [46, 46]
    assert everything["Random initialisation"] == [16, 16]
    figure = accuracy_over_stream(arms, 3)
    assert all(line.is_dashed() for line in figure.axes[0].get_lines()[1:])
    assert not figure.axes[0].collections  # one seed has no spread: no band


def test_bands_are_one_standard_deviation_over_seeds(record_of: Make) -> None:
    at_once = [[34, 36, 38], None, None, [96, 92, 94]]
    seeds = [record_of("ccl", FORGETS), record_of("ccl", OTHER, "seed=1")]
    bound = [record_of("upper_bound", AT_ONCE), record_of("upper_bound", at_once, "seed=1")]
    axes = accuracy_over_stream(make_arms([*seeds, *bound]), 3).axes[0]
    assert axes.get_lines()[0].get_ydata() == pytest.approx([28.5, 35, 38])
    (band,) = axes.collections
    # Two values a and b: their standard deviation is |a - b| / √2.
    spread = 2 / math.sqrt(2)
    corners = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    for step, mean in enumerate([28.5, 35, 38], 1):
        assert {y for x, y in corners if x == step} == {round(mean - spread, 6), round(mean + spread, 6)}
    (level,) = axes.patches
    assert (level.get_y(), level.get_height()) == pytest.approx((46.5 - 1 / math.sqrt(2), 2 / math.sqrt(2)))
    legend = axes.figure.legends[0].get_texts()
    assert [text.get_text() for text in legend] == ["CCL", "Upper Bound", "Random initialisation"]


def test_a_band_ends_where_one_seed_is_left(record_of: Make) -> None:
    stopped = record_of("ccl", [*OTHER[:3], None], "seed=1", state="stopped")
    axes = accuracy_over_stream(make_arms([record_of("ccl", FORGETS), stopped]), 3).axes[0]
    assert axes.get_lines()[0].get_ydata() == pytest.approx([28.5, 35, 37])
    assert max(x for path in axes.collections[0].get_paths() for x, _ in path.vertices) == 2


def test_each_number_of_steps_has_its_own_drawing(record_of: Make) -> None:
    two = [[30, 32], [70, 40], [60, 80]]
    runs = [
        record_of("ccl", FORGETS, "steps=3"),
        record_of("ccl", two, "steps=2", names=("x", "y")),
        record_of("upper_bound", AT_ONCE, "steps=3"),
        record_of("upper_bound", AT_ONCE, "steps=3", "objective=simclr"),
    ]
    groups = of_equal_steps(make_arms(runs))
    # All classes are the same however they are cut: Upper Bound is shown beside both.
    names = {count: [arm.name for arm in group] for count, group in groups.items()}
    bounds = ["Upper Bound, MoCoV2", "Upper Bound, SimCLR"]
    assert names == {2: ["CCL, MoCoV2, T = 2", *bounds], 3: ["CCL, MoCoV2, T = 3", *bounds]}
    shown = lines_of(accuracy_over_stream(groups[2], 2))
    assert shown["CCL, MoCoV2, T = 2"] == [27.5, 35]
    assert shown["Upper Bound, MoCoV2"] == [46, 46]
    ticks = accuracy_over_stream(groups[2], 2).axes[0].get_xticklabels()
    assert [label.get_text() for label in ticks] == ["x", "y"]


def test_an_upper_bound_of_the_same_steps_comes_before_another(record_of: Make) -> None:
    two = [[30, 32], None, [90, 92]]
    runs = [record_of("upper_bound", AT_ONCE, "steps=3"), record_of("upper_bound", two, "steps=2", names=("x", "y"))]
    runs += [record_of("ccl", FORGETS, "steps=3"), record_of("ccl", [*two[:1], [70, 40], [60, 80]], names=("x", "y"))]
    groups = of_equal_steps(make_arms(runs))
    assert [[len(arm.step_names) for arm in group] for group in groups.values()] == [[2, 2], [3, 3]]


def test_of_many_arms_the_baselines_and_the_best_are_drawn_each_in_its_own_style(record_of: Make) -> None:
    others = [name for name in STRATEGIES if name not in ("finetuning", "upper_bound")][:MOST_CURVES]
    runs = [record_of(name, raised(float(number))) for number, name in enumerate(["finetuning", *others])]
    arms = make_arms([*runs, record_of("upper_bound", AT_ONCE)])
    drawn = lines_of(accuracy_over_stream(arms, 3))
    best = [arm.name for arm in arms[3:-1]]
    assert set(drawn) == {"Finetuning", "Upper Bound", "Random initialisation", *best}
    colours = {line.get_label(): line.get_color() for line in accuracy_over_stream(arms, 3).axes[0].get_lines()}
    looks = {arm.name: look for arm, look in zip(arms, arm_styles(arms), strict=True)}
    assert {name: colours[name] for name in best} == {name: looks[name][0] for name in best}


def test_steps_whose_names_differ_are_numbered(record_of: Make) -> None:
    runs = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS, names=("x", "y", "z"))]
    axes = accuracy_over_stream(make_arms(runs), 3).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2", "step 3"]


def test_losses_stand_at_their_epochs_with_borders_between_steps(record_of: Make) -> None:
    record = record_of("ccl", FORGETS)
    record.rows.append(
        {"kind": "epoch", "step": 2, "epoch": 1, "losses": {"contrast": 9.0}, "seconds": 1.0}
    )  # repeated
    figure = losses(record)
    axes = figure.axes[0]
    contrast_line, distillation, *borders = axes.get_lines()
    assert list(contrast_line.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(contrast_line.get_ydata()) == [5.0, 5.5, 9.0, 5.0, 3.0, 4.5]
    assert np.isnan(distillation.get_ydata()).tolist() == [True, True, True, False, False, False]
    assert [border.get_xdata()[0] for border in borders] == [2.5, 4.5]
    assert [text.get_text() for text in axes.texts] == ["digits", "capitals", "greek"]


def test_unfinished_runs_are_drawn_as_far_as_they_came(record_of: Make) -> None:
    stopped, new = record_of("ccl", [*FORGETS[:2], None, None]), record_of("finetuning", None)
    new.rows.clear()
    arms = make_arms([stopped, new])
    assert lines_of(accuracy_over_stream(arms, 3))["CCL"][0] == 27.5
    assert "Finetuning" not in lines_of(accuracy_over_stream(arms, 3))
    assert losses(new) is None
    for figure in (accuracy_over_stream(arms[1:], 3), accuracy_matrix(arms[0])):
        ElementTree.fromstring(to_svg(figure))


T_2 = 4.30265  # Student's t at 97.5 %, for three seeds


def points(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Of all lines with this marker."""
    lines = [line for line in axes.get_lines() if line.get_marker() == marker and line.get_linestyle() == "None"]
    return [(float(x), float(y)) for line in lines for x, y in np.asarray(line.get_xydata())]


def bars(axes: Axes) -> list[list[list[float]]]:
    """Ends of the drawn intervals; the line at zero is none."""
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines() if line.get_marker() == "None"]
    return [line for line in lines if line[0][1] == line[1][1]]


def compared(record_of: Make) -> list[RunRecord]:
    """All classes: half the accuracy. CCL is 1, 2 and 3 above Finetuning, variance sampling 9.9, 10 and 10.1."""
    runs = []
    for seed, (base, small, large) in enumerate([(40, 42, 59.8), (50, 54, 70), (44, 50, 64.2)]):
        for strategy, value in (("finetuning", base), ("ccl", small), ("variance_rehearsal", large)):
            runs.append(record_of(strategy, [[20], [value]], f"seed={seed}", names=["a"]))
    return runs


def forest_of(runs: list[RunRecord]) -> Axes:
    figure = forest(make_arms(runs))
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
    filling = {line.get_marker(): line.get_markerfacecolor() for line in axes.get_lines()}
    assert (filling["D"], filling["^"]) == ("none", "#56b4e9")  # hollow: no test tells it from Finetuning


def test_the_verdict_is_that_of_the_table_with_all_its_tests(record_of: Make) -> None:
    """CCL is 2, 3 and 3.5 above Finetuning: p is 0.02 alone, and no longer small among the three tests of the table."""
    runs = []
    for seed, values in enumerate([(40, 44, 41), (50, 56, 50), (44, 51, 47)]):
        for strategy, value in zip(("finetuning", "ccl", "simple_rehearsal"), values, strict=True):
            runs.append(record_of(strategy, [[20], [value]], f"seed={seed}", names=["a"]))
    first = comparisons(make_arms(runs))[0]
    assert (first.arm.name, first.baseline.name) == ("CCL", "Finetuning")
    assert first.difference.p_value == pytest.approx(0.0234, abs=1e-4)
    assert first.words == differences(make_arms(runs)).rows[0][4] == "not distinguishable"
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


@pytest.fixture
def sweep(record_of: Make) -> list[RunRecord]:
    """Queues of three sizes on two seeds, at 37 + size ÷ 64 (± 1), and Finetuning at 37."""
    found = [record_of("finetuning", FORGETS, f"seed={seed}") for seed in (0, 1)]
    for size in (32, 64, 256):
        found += [
            record_of("ccl", raised(size / 64 + sign), f"seed={seed}", f"extra_sample_queue.size={size}")
            for seed, sign in enumerate((-1, 1))
        ]
    return found


def test_the_axis_is_the_one_varied_number(sweep: list[RunRecord], record_of: Make) -> None:
    assert varied_number(make_arms(sweep)) == "extra_sample_queue.size"
    # Finetuning has the preset's own 128, which it never looks at: no third value, and no part of its name.
    assert varied_number(make_arms([r for r in sweep if r.settings.extra_sample_queue.size != 256])) is None
    assert make_arms(sweep)[0].name == "Finetuning"
    assert varied_number(make_arms(sweep[2:6])) is None  # two values
    two = [*sweep, record_of("ccl", FORGETS, "seed=0", "memory.per_cluster=3")]
    assert varied_number(make_arms(two)) is None


def test_steps_are_an_axis(record_of: Make) -> None:
    def of(count: int) -> RunRecord:
        names = tuple(f"step {number + 1}" for number in range(count))
        rows = [[float(10 * i + j) for j in range(count)] for i in range(count + 1)]
        return record_of("finetuning", rows, f"steps={count}", names=names)

    arms = make_arms([of(2), of(4), of(5)])
    assert varied_number(arms) == "steps"
    (line,) = accuracy_against(arms, "steps").axes[0].get_lines()[:1]
    assert np.asarray(line.get_xdata()).tolist() == [2, 4, 5]


def test_points_are_the_means_with_their_intervals(sweep: list[RunRecord]) -> None:
    figure = accuracy_against(make_arms(sweep), "extra_sample_queue.size")
    axes = figure.axes[0]
    level = next(line for line in axes.get_lines() if line.get_label() == "Finetuning")
    assert np.asarray(level.get_ydata()).tolist() == [37, 37]
    (bars,) = axes.containers
    points = bars.lines[0]
    assert np.asarray(points.get_xdata()).tolist() == [32, 64, 256]
    assert np.asarray(points.get_ydata()) == pytest.approx([37.5, 38.0, 41.0])
    (segments,) = bars.lines[2]
    half = 12.706 * np.sqrt(2) / np.sqrt(2)  # Student's t of one degree times the standard error of 36.5 and 38.5
    assert segments.get_segments()[0][:, 1] == pytest.approx([37.5 - half, 37.5 + half], abs=0.01)
    assert "extra_sample_queue.size" in to_svg(figure)


def test_the_page_shows_the_axis_where_there_is_one(sweep: list[RunRecord], tmp_path: Path) -> None:
    write_page(sweep, tmp_path / "sweep.html", "queue sizes")
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    first = page[page.index('<section id="arms">') : page.index('<section id="differences">')]
    assert ">extra_sample_queue.size</text>" in first  # it is the first picture, and the stream has a section
    assert '<section id="accuracy">' in page
    write_page(sweep[:4], tmp_path / "two.html", "one size")
    assert '<section id="accuracy">' not in (tmp_path / "two.html").read_text(encoding="utf-8")
