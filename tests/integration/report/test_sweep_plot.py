"""Accuracy against a varied number: which setting is the axis, and points at the means."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ccl.report.arms import make_arms
from ccl.report.drawings import accuracy_against, varied_number
from ccl.report.figure_style import to_svg
from ccl.report.run_page import write_page
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]
ROWS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]


def raised(by: float) -> list[list[float]]:
    return [ROWS[0], *([value + 2 * by for value in row] for row in ROWS[1:])]


@pytest.fixture
def sweep(record_of: Make) -> list[RunRecord]:
    """Queues of three sizes on two seeds, at 37 + size ÷ 64 (± 1), and Finetuning at 37."""
    found = [record_of("finetuning", ROWS, f"seed={seed}") for seed in (0, 1)]
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
    two = [*sweep, record_of("ccl", ROWS, "seed=0", "memory.per_cluster=3")]
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
