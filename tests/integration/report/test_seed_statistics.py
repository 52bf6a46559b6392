"""Spreads, intervals and tests: against scipy, closed forms, and simulations that show the intervals cover."""

import math

import numpy as np
import pytest
from scipy import stats

from ccl.report.seed_statistics import (
    NOT_DISTINGUISHABLE,
    Difference,
    estimate,
    gap_share,
    holm,
    paired_difference,
    verdict,
)

VALUES = [53.1, 54.0, 53.6, 54.4, 53.2, 54.1]


def test_the_interval_is_students() -> None:
    found = estimate(VALUES)
    low, high = stats.t.interval(0.95, len(VALUES) - 1, np.mean(VALUES), stats.sem(VALUES))
    assert (found.mean, found.std, found.num) == pytest.approx((np.mean(VALUES), np.std(VALUES, ddof=1), 6))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_value_has_no_spread() -> None:
    found = estimate([math.nan, 50.0])
    assert (found.mean, found.num) == (50.0, 1)
    assert estimate([]).num == 0
    assert math.isnan(estimate([math.nan]).mean)
    assert all(map(math.isnan, (found.std, found.low, found.high)))


def test_the_paired_test_of_three_seeds_has_a_closed_form() -> None:
    """With 2 degrees of freedom P(|T| > t) = 1 - t ÷ √(2 + t²); the 97.5 % point is 0.95 ÷ √(2 · 0.975 · 0.025)."""
    found = paired_difference([52.0, 61.2, 43.3], [50.0, 59.0, 41.5])  # differences 2.0, 2.2, 1.8
    t = 2.0 / (0.2 / math.sqrt(3))
    half = 0.95 / math.sqrt(2 * 0.975 * 0.025) * 0.2 / math.sqrt(3)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert (found.mean, found.low, found.high, found.num) == pytest.approx((2.0, 2.0 - half, 2.0 + half, 3))


def test_pairs_are_told_apart_where_two_samples_are_not() -> None:
    """Seeds differ by ten points, strategies by one on every seed: only the pairing can see it."""
    base = np.array([40.0, 50.0, 60.0, 45.0, 55.0])
    found = paired_difference((base + np.array([1.0, 1.1, 0.9, 1.05, 0.95])).tolist(), base.tolist())
    assert found.p_value < 0.001 < float(stats.ttest_ind(base + 1, base).pvalue)


@pytest.mark.parametrize(("shift", "p_value"), [(0.0, 1.0), (2.0, 0.0), (0.1, 0.0)])  # 0.1: equal but for rounding
@pytest.mark.filterwarnings("error")
def test_differences_that_are_all_equal_have_an_answer(shift: float, p_value: float) -> None:
    found = paired_difference([value + shift for value in (1.0, 2.0, 3.0)], [1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx((shift, shift, shift))
    assert found.p_value == p_value


def test_holm_steps_down() -> None:
    # By hand: 0.01·4; max(0.04, 0.02·3); max(0.06, 0.03·2); max(0.06, 0.5·1)
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    corrected = holm([math.nan, 0.01])
    assert math.isnan(corrected[0])
    assert corrected[1] == 0.01


def test_verdicts_in_words() -> None:
    up, down = Difference(1.0, 0.4, 0.5, 1.5, 5, 0.01), Difference(-1.0, 0.4, -1.5, -0.5, 5, 0.01)
    assert verdict(up, 0.01) == "better"
    assert verdict(down, 0.01) == "worse"
    assert verdict(up, 0.05) == NOT_DISTINGUISHABLE
    assert verdict(paired_difference([1.0], [0.0]), math.nan) == "one seed, no test"


def test_the_share_of_a_gap_by_hand() -> None:
    """The paper's CIFAR-100, T = 5: (53.80 - 51.08) ÷ (57.63 - 51.08) = 42 %."""
    assert gap_share([51.08], [53.80], [57.63]).value == pytest.approx(0.415, abs=0.001)
    found = gap_share([50.0, 51.0], [52.0, 53.0], [54.0, 55.0])  # no noise at all: half on every seed
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_gap_that_may_be_none_has_a_share_without_bounds() -> None:
    found = gap_share([50.0, 51.0, 49.0], [50.5, 51.0, 49.2], [50.2, 50.9, 49.3])
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(gap_share([50.0, 50.0], [51.0, 51.0], [50.0, 50.0]).value)


def test_fiellers_interval_covers_the_true_share_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    covered, repeats = 0, 2000
    for _ in range(repeats):
        seeds = rng.normal(50, 2, 6)  # a seed moves all three alike, as the class order does
        lower, values, upper = (seeds + level + rng.normal(0, 0.5, 6) for level in (0.0, 2.0, 5.0))
        found = gap_share(lower.tolist(), values.tolist(), upper.tolist())
        covered += found.low <= 0.4 <= found.high
    assert covered / repeats == pytest.approx(0.95, abs=0.015)
