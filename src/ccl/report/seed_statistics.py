"""Statistics over seeds: spreads, intervals, paired tests and the share of a gap. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

LEVEL = 0.05  # of tests; intervals are of 1 - LEVEL
NOT_DISTINGUISHABLE = "not distinguishable"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; std and interval are nan for fewer than two, the mean for none."""

    mean: float
    std: float  # of a sample, n - 1 below
    low: float  # 95 % interval of the mean by Student's t
    high: float
    num: int


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean difference over equal seeds, and the p-value of a paired t-test (nan for one seed)."""

    p_value: float


@dataclass(frozen=True)
class Share:
    """The share of a gap that is closed (1 = all); nan bounds where the gap is not distinguishable from none."""

    value: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, standard deviation and 95 % interval of the values that are numbers."""
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    num = len(sample)
    if num < 2:
        return Estimate(float(sample[0]) if num else math.nan, math.nan, math.nan, math.nan, num)
    mean, std = float(sample.mean()), float(sample.std(ddof=1))
    half = _quantile(num - 1) * std / math.sqrt(num)
    return Estimate(mean, std, mean - half, mean + half, num)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """First minus second, seed by seed; the caller puts equal seeds at equal places."""
    about = estimate(np.subtract(first, second).tolist())
    if about.num == 1:
        p_value = math.nan
    elif about.std <= 1e-12 * abs(about.mean):  # every seed says the same, but for rounding: scipy has no p-value
        p_value = float(about.mean == 0)
    else:
        from scipy.stats import ttest_rel

        p_value = float(ttest_rel(first, second).pvalue)
    return Difference(**asdict(about), p_value=p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several in one table, by Holm's step-down; nan stays nan and is left out."""
    known = sorted((value, place) for place, value in enumerate(p_values) if not math.isnan(value))
    corrected, worst = list(p_values), 0.0
    for rank, (value, place) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * value))
        corrected[place] = worst
    return corrected


def verdict(difference: Difference, p_value: float) -> str:
    """The outcome of a test in words; `p_value` may have been corrected."""
    if math.isnan(p_value):
        return "one seed, no test"
    if p_value >= LEVEL:
        return NOT_DISTINGUISHABLE
    return "better" if difference.mean > 0 else "worse"


def gap_share(lower: Sequence[float], values: Sequence[float], upper: Sequence[float]) -> Share:
    """(values - lower) ÷ (upper - lower), a ratio of means with Fieller's 95 % interval, nan where not finite."""
    floor = np.asarray(lower, dtype=np.float64)
    gained, gap = np.asarray(values, dtype=np.float64) - floor, np.asarray(upper, dtype=np.float64) - floor
    num = len(floor)
    numerator, denominator = float(gained.mean()), float(gap.mean())
    ratio = numerator / denominator if denominator != 0 else math.nan
    if num == 1:
        return Share(ratio, math.nan, math.nan)
    covariance = np.cov(gained, gap) / num  # of the two means
    squared = _quantile(num - 1) ** 2
    a = denominator**2 - squared * covariance[1, 1]
    b = numerator * denominator - squared * covariance[0, 1]
    c = numerator**2 - squared * covariance[0, 0]
    if a <= 0:
        return Share(ratio, math.nan, math.nan)
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return Share(ratio, float((b - root) / a), float((b + root) / a))


def _quantile(degrees: int) -> float:
    from scipy.stats import t as student

    return float(student.ppf(1 - LEVEL / 2, degrees))
