"""The figures: what they draw, SVG that is well formed, stable and safe, names from outside taken as they are."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ccl.report import RunRecord
from ccl.report.figures import (
    STYLES,
    accuracy_matrices,
    accuracy_over_stream,
    first_step_over_stream,
    losses,
    to_png,
    to_svg,
)
from ccl.strategies import STRATEGIES

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]
HOSTILE = ("<script>alert(1)</script>", "\"]]>&'$\\frac{$", "a\x00\x1b\udcff--\nb")


def lines_of(figure: Figure) -> dict[str, list[float]]:
    """Label and heights of each labelled line."""
    lines = figure.axes[0].get_lines()
    return {str(line.get_label()): [float(y) for y in np.asarray(line.get_ydata())] for line in lines}


def words_of(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def records(record_of: Make) -> list[RunRecord]:
    return [record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)]


def all_figures(records: Sequence[RunRecord]) -> list[Figure]:
    return [
        accuracy_matrices(records),
        accuracy_over_stream(records),
        first_step_over_stream(records),
        losses(records[0]),
    ]


def test_matrices_print_each_number_once_with_readable_contrast(records: list[RunRecord]) -> None:
    figure = accuracy_matrices(records)
    one, other, colour_bar = figure.axes
    assert [text.get_text() for text in one.texts] == [f"{value:.1f}" for row in FORGETS for value in row]
    assert [text.get_text() for text in other.texts] == ["30.0", "32.0", "34.0", "90.0", "92.0", "94.0"]
    assert {text.get_position()[1] for text in other.texts} == {0, 3}  # rows of the random and the last encoder
    assert [label.get_text() for label in one.get_yticklabels()] == ["random", *(f"after step {i}" for i in (1, 2, 3))]
    assert [label.get_text() for label in one.get_xticklabels()] == ["digits", "capitals", "greek"]
    assert one.get_ylim()[0] > one.get_ylim()[1]  # the random row stands on top
    assert one.collections[0].norm is other.collections[0].norm
    assert colour_bar.get_ylim() == (30, 100)
    for text in (*one.texts, *other.texts):
        value = float(text.get_text())
        ground = matplotlib.colormaps["cividis"].resampled(40)(one.collections[0].norm(value))
        assert contrast(ground, matplotlib.colors.to_rgba(text.get_color())) > 3.5


def contrast(*colours: Sequence[float]) -> float:
    """The ratio that WCAG defines, between 1 and 21."""
    linear = [[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]] for colour in colours]
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (light + 0.05) / (dark + 0.05)


def test_curves_are_the_columns_they_name(records: list[RunRecord]) -> None:
    everything, first = lines_of(accuracy_over_stream(records)), lines_of(first_step_over_stream(records))
    assert everything["Finetuning"] == pytest.approx([(80 + 40 + 45) / 6, (70 + 84 + 50) / 6, 37])
    assert everything["Upper Bound"] == [46, 46]
    assert everything["Random initialisation"] == [16, 16]
    assert first == {"Finetuning": [80, 70, 60], "Upper Bound": [90, 90], "Random initialisation": [30, 30]}
    assert all(line.is_dashed() for line in accuracy_over_stream(records).axes[0].get_lines()[1:])


def test_seeds_share_a_colour_and_one_name(record_of: Make) -> None:
    figure = accuracy_over_stream([record_of("ccl", FORGETS, f"seed={seed}") for seed in (0, 1)])
    first, second, _ = figure.axes[0].get_lines()
    assert first.get_color() == second.get_color() == STYLES["ccl"][0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["CCL", "Random initialisation"]


def test_every_strategy_has_its_own_colour_and_marker() -> None:
    assert STYLES.keys() == STRATEGIES.keys()
    assert len(set(STYLES.values())) == len({colour for colour, _ in STYLES.values()}) == len(STRATEGIES)


def test_losses_stand_at_their_epochs_with_borders_between_steps(record_of: Make) -> None:
    record = record_of("ccl", FORGETS)
    record.rows.append(
        {"kind": "epoch", "step": 2, "epoch": 1, "losses": {"contrast": 9.0}, "seconds": 1.0}
    )  # repeated
    axes = losses(record).axes[0]
    contrast_line, distillation, *borders = axes.get_lines()
    assert list(contrast_line.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(contrast_line.get_ydata()) == [5.0, 5.5, 9.0, 5.0, 3.0, 4.5]
    assert np.isnan(distillation.get_ydata()).tolist() == [True, True, True, False, False, False]
    assert [border.get_xdata()[0] for border in borders] == [2.5, 4.5]
    assert [text.get_text() for text in axes.texts] == ["digits", "capitals", "greek"]


def test_unfinished_runs_are_drawn_as_far_as_they_came(record_of: Make) -> None:
    stopped, new = record_of("ccl", [*FORGETS[:2], None, None]), record_of("finetuning", None)
    new.rows.clear()
    assert len(accuracy_matrices([stopped, new]).axes) == 2  # one matrix and the colour bar
    assert lines_of(first_step_over_stream([stopped, new]))["CCL"][0] == 80
    assert "Finetuning" not in lines_of(accuracy_over_stream([stopped, new]))
    for figure in (*all_figures([new]), losses(new)):
        ElementTree.fromstring(to_svg(figure))
    assert words_of(to_svg(accuracy_matrices([new]))) == ["no accuracy was measured"]


def test_svg_is_inline_well_formed_transparent_and_in_the_pages_colour(records: list[RunRecord]) -> None:
    for figure in all_figures(records):
        svg = to_svg(figure)
        assert svg.startswith("<svg")
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "dc:date" not in svg
        background = svg[svg.index("<path") : svg.index("/>")]
        assert "fill: none" in background


def test_svg_is_the_same_each_time_and_ids_are_each_figures_own(records: list[RunRecord]) -> None:
    first, second = ([to_svg(figure) for figure in all_figures(records)] for _ in range(2))
    assert first == second
    ids = [node.get("id") for svg in first for node in ElementTree.fromstring(svg).iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    for svg in first:
        own = {node.get("id") for node in ElementTree.fromstring(svg).iter()}
        used = [node.get("{http://www.w3.org/1999/xlink}href") for node in ElementTree.fromstring(svg).iter()]
        assert all(link[1:] in own for link in used if link)


def test_hostile_names_are_text(record_of: Make) -> None:
    records = [record_of(HOSTILE[0], FORGETS, names=HOSTILE), record_of("$x$", FORGETS, names=HOSTILE)]
    for figure in all_figures(records):
        svg = to_svg(figure)
        words = words_of(svg)  # parses: no control characters, no stray tags
        assert "<script" not in svg
        assert any("script" in word for word in words)
    assert "\"]]>&'$\\frac{$" in words_of(to_svg(accuracy_matrices(records)))


def test_drawing_changes_no_global_setting(records: list[RunRecord]) -> None:
    before = dict(matplotlib.rcParams)
    to_svg(accuracy_matrices(records))
    assert dict(matplotlib.rcParams) == before


def test_png_is_on_white(records: list[RunRecord], tmp_path: Path) -> None:
    to_png(accuracy_over_stream(records), tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
