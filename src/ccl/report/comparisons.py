"""Arms against each other: paired differences over equal seeds, tested, and the share of the gap that is closed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ccl.report import measures
from ccl.report.run_groups import Arm, Measure, seeds_of
from ccl.report.seed_statistics import Difference, Share, gap_share, holm, paired_difference, verdict
from ccl.report.tables import Cell, Table, interval
from ccl.runs.run_folder import RunRecord

Found = TypeVar("Found")
BASELINES = ("finetuning", "simple_rehearsal")
# Each test makes the others weaker: Finetuning against Simple Rehearsal is the reverse of a test that is made.
_UNTESTED = {("finetuning", "simple_rehearsal"), ("upper_bound", "simple_rehearsal")}


@dataclass(frozen=True)
class Comparison:
    """An arm against a baseline of its own objective and number of steps, over equal seeds."""

    arm: Arm
    baseline: Arm
    difference: Difference
    p_value: float  # corrected for all tests made together; nan for one seed
    share: Share | None  # of the gap from Finetuning to Upper Bound; None where there is no such gap

    @property
    def words(self) -> str:
        return verdict(self.difference, self.p_value)


def comparisons(arms: Sequence[Arm]) -> list[Comparison]:
    """Each arm against Finetuning, and those with a memory against Simple Rehearsal, on all classes."""
    pairs = [
        (arm, baseline)
        for strategy in BASELINES
        for arm in arms
        for baseline in partners(arm, arms, strategy)
        if (arm.strategy, strategy) not in _UNTESTED
    ]
    paired = [(pair, difference_of(*pair)) for pair in pairs]
    found = [(pair, difference) for pair, difference in paired if difference is not None]
    corrected = holm([difference.p_value for _, difference in found])
    return [
        Comparison(arm, baseline, difference, p_value, _share(arm, baseline, arms))
        for ((arm, baseline), difference), p_value in zip(found, corrected, strict=True)
    ]


def difference_of(arm: Arm, other: Arm) -> Difference | None:
    """On all classes, over the seeds that both have; None where they share none."""
    return _over_equal_seeds(paired_difference, (arm, other))


def differences(arms: Sequence[Arm]) -> Table:
    """The comparisons as a table: tested, in words, and with the share of the gap that an arm closes."""
    columns = ("Strategy", "against", "Seeds", "Points", "95 % interval", "p", "In words", "Gap closed", "interval")
    return Table(
        "Paired differences over equal seeds, all classes, in percentage points",
        columns,
        tuple(_row(comparison) for comparison in comparisons(arms)),
        "Paired t-tests, p corrected for their number by Holm's method; significant below 0.05. Gap closed: "
        "the share of the way from Finetuning to Upper Bound, ratio of means, with Fieller's 95 % interval (none "
        "where the gap itself is not distinguishable from zero).",
        ("interval", "Seeds"),
    )


def _row(comparison: Comparison) -> tuple[Cell, ...]:
    difference, p_value, share = comparison.difference, comparison.p_value, comparison.share
    bounds = None if share is None else interval(100 * share.low, 100 * share.high, 0)
    return (
        comparison.arm.name,
        comparison.baseline.name,
        str(difference.num),
        f"{difference.mean:+z.1f}",
        interval(difference.low, difference.high),
        None if math.isnan(p_value) else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}",
        comparison.words,
        None if share is None else f"{100 * share.value:z.0f} %",
        None if bounds is None else f"{bounds} %",
    )


def partners(arm: Arm, arms: Sequence[Arm], strategy: str) -> list[Arm]:
    """The arms of another strategy that this one is measured against: same objective, same steps where they matter.

    What is learned all at once has no steps, so it has a partner for each number of them; other arms have one.
    """

    def fits(other: Arm) -> bool:
        one_step = arm.is_all_at_once or other.is_all_at_once
        same_steps = one_step or len(other.step_names) == len(arm.step_names)
        return other.strategy == strategy and other.settings.objective == arm.settings.objective and same_steps

    found = [other for other in arms if other is not arm and fits(other)]
    return found if arm.is_all_at_once else found[:1]


def _over_equal_seeds(compute: Callable[..., Found], arms: Sequence[Arm]) -> Found | None:
    """A function of the arms' accuracies at the seeds that all of them have; None where they share none."""
    values = [arm.values(measures.all_classes) for arm in arms]
    common = sorted(set.intersection(*(set(found) for found in values)))
    return compute(*([found[seed] for seed in common] for found in values)) if common else None


def _share(arm: Arm, baseline: Arm, arms: Sequence[Arm]) -> Share | None:
    tops = partners(arm, arms, "upper_bound")
    if baseline.strategy != "finetuning" or not tops or arm.is_all_at_once:
        return None
    share = _over_equal_seeds(gap_share, [baseline, arm, tops[0]])
    return None if share is None or math.isnan(share.value) else share


def against_finetuning(measure: Measure, arms: Sequence[Arm]) -> Measure:
    """What a run has above the run of the same seeds of the Finetuning that its arm is measured against."""
    found: dict[int, float] = {}
    for arm in arms:
        for baseline in partners(arm, arms, "finetuning")[:1]:
            values = baseline.values(measure)
            found |= {id(record): values.get(seeds_of(record), math.nan) for record in arm.records}

    def difference(record: RunRecord) -> float:
        return measure(record) - found.get(id(record), math.nan)

    return difference
