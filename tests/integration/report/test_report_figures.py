"""The figures of a stream: numbers, means over seeds and bands, each computed by hand."""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from ccl.report.arms import Arm, make_arms, of_equal_steps
from ccl.report.drawings import (
    accuracy_matrix,
    accuracy_over_stream,
    first_step_over_stream,
    full_change,
    losses,
)
from ccl.report.figure_style import STYLES, arm_styles, to_svg
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
OTHER = [[34, 36, 38], [84, 46, 47], [76, 80, 60], [66, 72, 96]]  # another seed's
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]


def lines_of(figure: Figure) -> dict[str, list[float]]:
    """Label and heights of each labelled line."""
    lines = figure.axes[0].get_lines()
    return {str(line.get_label()): [float(y) for y in np.asarray(line.get_ydata())] for line in lines}


def matrix_of(arm: Arm) -> Figure:
    return accuracy_matrix(arm, full_change([arm]))


def accuracies_in(figure: Figure) -> list[str]:
    """The numbers in a matrix's cells, row by row, without the changes, which are signed."""
    return [text.get_text() for text in sorted_texts(figure) if text.get_text()[0] not in "+-"]


def sorted_texts(figure: Figure) -> list[Text]:
    return sorted(figure.axes[0].texts, key=lambda text: (round(text.get_position()[1]), text.get_position()[0]))


@pytest.fixture
def arms(record_of: Make) -> list[Arm]:
    return make_arms([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])


def test_matrices_print_each_number_once_and_only_measured_rows(arms: list[Arm]) -> None:
    one, other = (accuracy_matrix(arm, 20) for arm in arms)
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
    assert full_change(arms) == 20
    axes = accuracy_matrix(arms[0], 20).axes[0]
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
    assert not rectangles(accuracy_matrix(arms[1], 20).axes[0])  # learned at once: nothing is past


def test_what_rose_is_blue_and_small_changes_stay_pale(record_of: Make) -> None:
    rows = [[97, 30], [97, 40], [98, 50]]  # 97 % from random weights, and a point more at the end
    (arm,) = make_arms([record_of("ccl", rows, names=("digits", "greek"))])
    assert full_change([arm]) == 5
    (patch,) = [patch for patch in rectangles(accuracy_matrix(arm, 5).axes[0]) if patch.get_fill()]
    assert patch.get_facecolor()[:3] == to_rgb("#0080c6")
    assert patch.get_alpha() == pytest.approx(0.6 / 5)


@pytest.mark.parametrize(("paper", "ink"), [("#fdfdfc", "#1d2126"), ("#15181c", "#e4e7ea")])
@pytest.mark.parametrize("colour", ["#d55e00", "#0080c6"])
def test_ink_is_readable_on_the_fullest_colour_of_light_and_dark_pages(colour: str, paper: str, ink: str) -> None:
    ground = [0.6 * one + 0.4 * other for one, other in zip(to_rgb(colour), to_rgb(paper), strict=True)]
    assert contrast(ground, to_rgb(ink)) > 4.5


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def contrast(*colours: Sequence[float]) -> float:
    """The ratio that WCAG defines, between 1 and 21."""
    linear = [[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]] for colour in colours]
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (light + 0.05) / (dark + 0.05)


def test_a_matrix_is_the_mean_over_the_seeds_that_have_a_number(record_of: Make) -> None:
    whole = [record_of("ccl", FORGETS), record_of("ccl", OTHER, "seed=1")]
    figure = matrix_of(make_arms(whole)[0])
    means = [(a + b) / 2 for one, two in zip(FORGETS, OTHER, strict=True) for a, b in zip(one, two, strict=True)]
    assert accuracies_in(figure) == [f"{value:.1f}" for value in means]
    assert figure.axes[0].get_title(loc="left") == "CCL\nmean of 2 seeds"

    stopped = record_of("ccl", [[40, 42, 44], [90, 60, 61], None, None], "seed=2", state="stopped")
    figure = matrix_of(make_arms([*whole, stopped])[0])
    shown = [float(text) for text in accuracies_in(figure)]
    assert shown[3] == pytest.approx((80 + 84 + 90) / 3, abs=0.05)
    assert shown[-1] == 93.0  # of the two that came so far
    assert figure.axes[0].get_title(loc="left") == "CCL\nmean of 2 to 3 seeds"


def test_arms_share_one_scale_in_figures_of_their_own(record_of: Make) -> None:
    arms = make_arms([record_of("ccl", FORGETS), record_of("ccl", [[11], [55]], names=["a"])])
    assert full_change(arms) == 20
    assert [len(accuracies_in(accuracy_matrix(arm, 20))) for arm in arms] == [12, 2]  # each of its own number of steps


def test_a_long_name_stands_above_its_matrix_in_lines(record_of: Make) -> None:
    runs = [record_of("ccl", [[11], [55]], f"encoder.dim={dim}", "views.recipe=plain", names=["a"]) for dim in (64, 32)]
    runs.append(record_of("ccl", [[11], [55]], "temperature=0.3", "memory.per_cluster=3", names=["a"]))
    figure = matrix_of(make_arms(runs)[0])
    lines = figure.axes[0].get_title(loc="left").splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 38
    figure.draw_without_rendering()
    box = figure.axes[0]._left_title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1  # nothing is cut off
    assert box.y1 <= figure.bbox.y1


def test_curves_are_the_columns_they_name(arms: list[Arm]) -> None:
    everything, first = lines_of(accuracy_over_stream(arms, 3)), lines_of(first_step_over_stream(arms, 3))
    assert everything["Finetuning"] == pytest.approx([(80 + 40 + 45) / 6, (70 + 84 + 50) / 6, 37])
    assert everything["Upper Bound"] == [46, 46]
    assert everything["Random initialisation"] == [16, 16]
    assert first == {"Finetuning": [80, 70, 60], "Upper Bound": [90, 90], "Random initialisation": [30, 30]}
    figure = accuracy_over_stream(arms, 3)
    assert all(line.is_dashed() for line in figure.axes[0].get_lines()[1:])
    assert not figure.axes[0].collections  # one seed has no spread: no band


def test_an_axis_shows_ten_points_at_least(record_of: Make) -> None:
    """A point more is not a climb over the whole height."""
    rows = [[40.0], [41.0]]
    low, high = accuracy_over_stream(make_arms([record_of("ccl", rows, names=["a"])]), 1).axes[0].get_ylim()
    assert high - low == pytest.approx(10)
    assert low < 20 < 20.5 < high  # all classes: half of each
    low, high = first_step_over_stream(make_arms([record_of("ccl", FORGETS)]), 3).axes[0].get_ylim()
    assert high - low == pytest.approx(1.1 * 50)  # wide enough of itself: from 30 to 80


def test_bands_are_one_standard_deviation_over_seeds(record_of: Make) -> None:
    at_once = [[34, 36, 38], None, None, [96, 92, 94]]
    seeds = [record_of("ccl", FORGETS), record_of("ccl", OTHER, "seed=1")]
    bound = [record_of("upper_bound", AT_ONCE), record_of("upper_bound", at_once, "seed=1")]
    axes = first_step_over_stream(make_arms([*seeds, *bound]), 3).axes[0]
    assert axes.get_lines()[0].get_ydata().tolist() == [82, 73, 63]
    (band,) = axes.collections
    # Two values a and b: their standard deviation is |a - b| / √2.
    spread = [4 / math.sqrt(2), 6 / math.sqrt(2), 6 / math.sqrt(2)]
    corners = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    for step, (mean, std) in enumerate(zip([82, 73, 63], spread, strict=True), 1):
        assert {y for x, y in corners if x == step} == {round(mean - std, 6), round(mean + std, 6)}
    (level,) = axes.patches
    assert (level.get_y(), level.get_height()) == pytest.approx((93 - 6 / math.sqrt(2), 12 / math.sqrt(2)))
    legend = axes.figure.legends[0].get_texts()
    assert [text.get_text() for text in legend] == ["CCL", "Upper Bound", "Random initialisation"]


def test_a_band_ends_where_one_seed_is_left(record_of: Make) -> None:
    stopped = record_of("ccl", [*OTHER[:3], None], "seed=1", state="stopped")
    axes = first_step_over_stream(make_arms([record_of("ccl", FORGETS), stopped]), 3).axes[0]
    assert axes.get_lines()[0].get_ydata().tolist() == [82, 73, 60]
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
    assert lines_of(first_step_over_stream(groups[2], 2)).keys() == {"CCL, MoCoV2, T = 2", "Random initialisation"}
    ticks = accuracy_over_stream(groups[2], 2).axes[0].get_xticklabels()
    assert [label.get_text() for label in ticks] == ["x", "y"]


def test_an_upper_bound_of_the_same_steps_comes_before_another(record_of: Make) -> None:
    two = [[30, 32], None, [90, 92]]
    runs = [record_of("upper_bound", AT_ONCE, "steps=3"), record_of("upper_bound", two, "steps=2", names=("x", "y"))]
    runs += [record_of("ccl", FORGETS, "steps=3"), record_of("ccl", [*two[:1], [70, 40], [60, 80]], names=("x", "y"))]
    groups = of_equal_steps(make_arms(runs))
    assert [[len(arm.step_names) for arm in group] for group in groups.values()] == [[2, 2], [3, 3]]


def test_steps_whose_names_differ_are_numbered(record_of: Make) -> None:
    runs = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS, names=("x", "y", "z"))]
    axes = first_step_over_stream(make_arms(runs), 3).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2", "step 3"]
    assert axes.get_ylabel() == "accuracy on the first step (%)"


def test_arms_of_one_strategy_can_be_told_apart(record_of: Make) -> None:
    sizes = [record_of("ccl", FORGETS, f"extra_sample_queue.size={8 * 2**power}") for power in range(8)]
    bounds = [record_of("upper_bound", AT_ONCE, f"temperature=0.{digit}") for digit in (1, 2, 3)]
    found = arm_styles(make_arms([*sizes, *bounds]))
    assert len(set(found)) == len(found)
    assert found[0].colour == STYLES["ccl"][0]
    assert {look.marker for look in found[:8]} == {STYLES["ccl"][1]}
    assert len({str(look.line) for look in found[8:]}) == 3
    assert "-" not in [look.line for look in found[8:]]  # a level is never drawn through


def test_losses_stand_at_their_epochs_with_borders_between_steps(record_of: Make) -> None:
    record = record_of("ccl", FORGETS)
    record.rows.append(
        {"kind": "epoch", "step": 2, "epoch": 1, "losses": {"contrast": 9.0}, "seconds": 1.0}
    )  # repeated
    figure = losses(record)
    assert figure is not None
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
    assert lines_of(first_step_over_stream(arms, 3))["CCL"][0] == 80
    assert "Finetuning" not in lines_of(accuracy_over_stream(arms, 3))
    assert losses(new) is None
    for figure in (accuracy_over_stream(arms[1:], 3), matrix_of(arms[0])):
        ElementTree.fromstring(to_svg(figure))
