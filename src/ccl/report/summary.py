"""Runs as tables: each arm's numbers and costs, its paired differences to the baselines, every run with its stamp."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from ccl.evaluation import standard_error
from ccl.report import measures
from ccl.report.provenance import protocol_note, stamp
from ccl.report.run_folder import RunRecord
from ccl.report.run_groups import Arm, Measure, has_seeds, records_of
from ccl.report.statistics import Difference, Estimate, Share, gap_share, holm, paired_difference, verdict
from ccl.report.tables import Cell, Table, interval

RANDOM_TITLE = "Random initialisation"
MEASURES: dict[str, Measure] = {
    "All classes (%)": measures.all_classes,
    "Mean of steps (%)": measures.mean_of_steps,
    "First step, after it (%)": measures.first_step_after_it,
    "First step, at the end (%)": measures.first_step_at_the_end,
    "Forgetting ↓": measures.forgotten,
    "Forward Transfer ↑": measures.transferred,
    "Training (s)": measures.training_seconds,
}
COSTS: dict[str, Measure] = {
    "Training (s)": measures.training_seconds,
    "Probes (s)": measures.probe_seconds,
    "Peak memory (MB)": measures.peak_megabytes,
    "On disk (MB)": measures.folder_megabytes,
}
Found = TypeVar("Found")
TEST_SET = "± by test set"
_SPARE = ("Training (s)", TEST_SET, "Mean of steps (%)", "First step, after it (%)", "Forward Transfer ↑", "Seeds")
BASELINES = ("finetuning", "simple_rehearsal")
# Each test makes the others weaker: Finetuning against Simple Rehearsal is the reverse of a test that is made.
_UNTESTED = {("finetuning", "simple_rehearsal"), ("upper_bound", "simple_rehearsal")}


def make_tables(arms: Sequence[Arm]) -> list[Table]:
    """The tables of these arms: the summary, and tests where several seeds allow them."""
    tested = differences(arms)
    return [summary(arms), *([tested] if tested.rows and has_seeds(arms) else [])]


def summary(arms: Sequence[Arm]) -> Table:
    """A row for the random initialisation and one per arm; accuracies in percent, differences in percentage points.

    Beside the accuracy on all classes stands its standard error by the test set, where runs say how large that is.
    """
    seeds = ("Seeds",) if has_seeds(arms) else ()
    columns = ["Strategy", *seeds, *MEASURES]
    rows = [_random_row(arms)]
    for arm in arms:
        rows.append([arm.name, *(_seeds(arm) for _ in seeds), *map(arm.estimate, MEASURES.values())])
    if num_tested(arms):
        place = columns.index("All classes (%)") + 1
        columns.insert(place, TEST_SET)
        errors = [_random_error(arms), *(_known(arm.estimate(measures.error_by_test_set)) for arm in arms)]
        for row, error in zip(rows, errors, strict=True):
            row.insert(place, error)
    title = f"Accuracy of a linear probe after the last step{_spread(arms)}"
    note = " ".join([*about_test_set(arms), protocol_note(arms)])
    return Table(
        title, tuple(columns), tuple(map(tuple, rows)), note, tuple(name for name in _SPARE if name in columns)
    )


def num_tested(arms: Sequence[Arm]) -> list[int]:
    """How many test images the accuracy on all classes was measured on, each number once; of older runs none."""
    return sorted({sum(sizes) for record in records_of(arms) if (sizes := record.num_test_images)})


def about_test_set(arms: Sequence[Arm]) -> list[str]:
    """A sentence on how large the test set is, where runs say so."""
    num = " or ".join(f"{size:,}" for size in num_tested(arms))
    sentence = (
        f"All classes: on {num} test images; {TEST_SET}: the standard error in points, what another draw of as many "
        "would change, which neither seeds nor their intervals contain."
    )
    return [sentence] if num else []


def costs(arms: Sequence[Arm]) -> Table:
    """What runs cost: time, memory and room on disk; a row per arm."""
    stamps = [stamp(record) for record in records_of(arms)]
    devices = dict.fromkeys(f"{one['device'] or 'unknown'}, threads: {one['threads'] or 'unknown'}" for one in stamps)
    note = (
        f"Measured on: {'; '.join(devices)}. Times of one machine under one load can be compared, others can't. "
        "Peak memory: of the whole process, with Python and torch. On disk: checkpoints, weights and kept images too."
    )
    rows = tuple((arm.name, *map(arm.estimate, COSTS.values())) for arm in arms)
    return Table(f"Per run{_spread(arms)}", ("Strategy", *COSTS), rows, note)


def _spread(arms: Sequence[Arm]) -> str:
    return "; mean ± standard deviation over seeds" if has_seeds(arms) else ""


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


def every_run(records: Sequence[RunRecord]) -> Table:
    """One row per run: its numbers, and the stamp they must be read with."""
    stamps = [stamp(record) for record in records]
    columns = ("strategy", "objective", *MEASURES, "peak memory (MB)", *stamps[0])
    rows = []
    for record, own in zip(records, stamps, strict=True):
        numbers = [measure(record) for measure in (*MEASURES.values(), measures.peak_megabytes)]
        known = [None if math.isnan(number) else number for number in numbers]
        rows.append((record.settings.strategy, record.settings.objective, *known, *own.values()))
    return Table("Every run", columns, tuple(rows), "")


def random_accuracy(records: Sequence[RunRecord]) -> tuple[list[float], float, int]:
    """Of the random initialisation: accuracy on each of T steps, on all classes, and of how many it is the mean.

    Runs that began alike are taken once. nan where no run of the first's number of steps was probed before training.
    """
    num_steps = len(records[0].step_names)
    measured = {
        (*record.accuracy.random_per_step.tolist(), float(record.accuracy.random_total))
        for record in records
        if record.accuracy is not None
        and record.accuracy.num_steps == num_steps
        and not record.accuracy.random_per_step.isnan().any()
    }
    if not measured:
        return [math.nan] * num_steps, math.nan, 0
    *per_step, total = map(fmean, zip(*sorted(measured), strict=True))
    return per_step, total, len(measured)


def _random_row(arms: Sequence[Arm]) -> list[Cell]:
    per_step, total, num_measured = random_accuracy(records_of(arms))
    name = RANDOM_TITLE + (f" (mean of {num_measured})" if num_measured > 1 else "")
    # It never learns, so its accuracy on the first step's data is the same at any time.
    numbers = (total, fmean(per_step), per_step[0], per_step[0])
    known = [None if math.isnan(number) else number for number in numbers]
    return [name, *([None] if has_seeds(arms) else []), *known, None, None, None]


def _random_error(arms: Sequence[Arm]) -> float | None:
    """Of the random initialisation on the test images of the runs that it is taken from."""
    records = records_of(arms)
    total, sizes = random_accuracy(records)[1], records[0].num_test_images
    return None if sizes is None or math.isnan(total) else standard_error(total, sum(sizes))


def _known(about: Estimate | None) -> float | None:
    return None if about is None else about.mean


def _seeds(arm: Arm) -> str:
    orders = [record.settings.data.seed for record in arm.records]
    if len({order for order in orders if order is not None}) > 1:
        return ", ".join(f"{record.settings.seed} (order {record.settings.stream_seed})" for record in arm.records)
    seeds = [record.settings.seed for record in arm.records]
    is_range = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}–{seeds[-1]}" if is_range else ", ".join(map(str, seeds))


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
