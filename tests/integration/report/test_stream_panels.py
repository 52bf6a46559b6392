"""A panel for each arm: curves at the means, baselines beside them, the best first."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ccl.report.arms import make_arms
from ccl.report.drawings import MOST_CURVES, stream_panels
from ccl.report.run_page import write_page
from ccl.runs.run_folder import RunRecord
from ccl.strategies import STRATEGIES, strategy_title

Make = Callable[..., RunRecord]
ROWS = [[30, 32, 34], [80, 40, 46], [70, 84, 50], [60, 72, 90]]
OTHERS = [name for name in STRATEGIES if name not in ("finetuning", "upper_bound")][:MOST_CURVES]


def raised(by: float) -> list[list[float]]:
    """All-class accuracies are half the mean of a row: higher by as much."""
    return [ROWS[0], *([value + 2 * by for value in row] for row in ROWS[1:])]


@pytest.fixture
def many(record_of: Make) -> list[RunRecord]:
    """Two seeds of Finetuning and of eight strategies, each a point above the one before, and one of Upper Bound."""
    found = [record_of("finetuning", raised(sign), f"seed={seed}") for seed, sign in enumerate((-1, 1))]
    for number, name in enumerate(OTHERS, start=1):
        found += [record_of(name, raised(number + sign), f"seed={seed}") for seed, sign in enumerate((-1, 1))]
    return [*found, record_of("upper_bound", [ROWS[0], None, None, [90, 90, 90]], "seed=0")]


def test_each_arm_stands_beside_its_baselines_and_the_best_comes_first(many: list[RunRecord]) -> None:
    figure = stream_panels(make_arms(many), 3)
    assert figure is not None
    panels = figure.axes[: len(OTHERS)]
    mean = [np.mean(row) / 2 for row in ROWS[1:]]
    titles = [f"{strategy_title(name)}: {mean[-1] + number:.1f}" for number, name in enumerate(OTHERS, start=1)]
    assert [axes.get_title(loc="left") for axes in panels] == titles[::-1]
    for number, axes in enumerate(reversed(panels), start=1):
        finetuning, top, own = axes.get_lines()
        np.testing.assert_allclose(np.asarray(finetuning.get_ydata()), mean)
        np.testing.assert_allclose(np.asarray(top.get_ydata()), 45.0)
        np.testing.assert_allclose(np.asarray(own.get_ydata()), [value + number for value in mean])


def test_baselines_alone_have_no_panels(many: list[RunRecord]) -> None:
    assert stream_panels(make_arms([many[0], many[-1]]), 3) is None


def test_the_page_has_them_where_one_picture_has_too_many_curves(many: list[RunRecord], tmp_path: Path) -> None:
    write_page(many, tmp_path / "many.html", "Many")
    assert 'id="accuracy"' in (tmp_path / "many.html").read_text()
    write_page(many[:-5], tmp_path / "few.html", "Few")
    assert 'id="accuracy"' not in (tmp_path / "few.html").read_text()
