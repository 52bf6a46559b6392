"""Runs as tables: each arm's numbers and costs, every run with its stamp."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from ccl.evaluation import standard_error
from ccl.report import measures
from ccl.report.comparisons import against_finetuning, differences
from ccl.report.provenance import protocol_line, reservations, stamp
from ccl.report.run_groups import Arm, Measure, has_seeds, make_arms, records_of
from ccl.report.seed_statistics import Estimate
from ccl.report.tables import Cell, Table
from ccl.runs.run_folder import RunRecord

RANDOM_TITLE = "Random initialisation"
ALL_CLASSES = "All classes (%)"
PLASTICITY = "Plasticity (%)"
RELATIVE_PLASTICITY = "Plasticity against Finetuning"
MEASURES: dict[str, Measure] = {
    ALL_CLASSES: measures.all_classes,
    "Mean of steps (%)": measures.mean_of_steps,
    "First step, after it (%)": measures.first_step_after_it,
    "First step, at the end (%)": measures.first_step_at_the_end,
    PLASTICITY: measures.learned,
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
TEST_SET = "± by test set"
# The first to go on a narrow terminal come first.
_OF_STEPS = ("Mean of steps (%)", "First step, after it (%)")
_SPARE = ("Training (s)", TEST_SET, *_OF_STEPS, "Forward Transfer ↑", "Seeds", PLASTICITY, "First step, at the end (%)")


def make_tables(arms: Sequence[Arm]) -> dict[str, Table]:
    """The tables of these arms: the summary, tests where several seeds allow them, and what has another protocol."""
    tested = differences(arms)
    found = {"summary": summary(arms)}
    found |= {"differences": tested} if tested.rows and has_seeds(arms) else {}
    return found | ({"stream": along_the_stream(arms)} if has_paper_probe(arms) else {})


def has_paper_probe(arms: Sequence[Arm]) -> bool:
    """Whether the headline of some run is by the paper's protocol, and all its other accuracies are not."""
    return any(record.has_paper_probe for record in records_of(arms))


def summary(arms: Sequence[Arm]) -> Table:
    """A row for the random initialisation and one per arm; accuracies in percent, differences in percentage points.

    Beside the accuracy on all classes stands its standard error by the test set, where runs say how large that is, and
    beside plasticity what it is above Finetuning's, where there is a Finetuning. Of runs with the paper's own probe
    only what that measured: numbers of different protocols never stand in one table.
    """
    by_paper = has_paper_probe(arms)
    shown = {name: MEASURES[name] for name in (ALL_CLASSES, "Training (s)")} if by_paper else MEASURES
    columns, rows = _columns(arms, shown)
    random = [] if by_paper else [_random_row(arms)]
    if num_tested(arms):
        errors = [*(_random_error(arms) for _ in random)]
        errors += [_known(arm.estimate(measures.error_by_test_set)) for arm in arms]
        _insert(columns, [*random, *rows], ALL_CLASSES, TEST_SET, errors)
    _add_relative_plasticity(columns, random, rows, arms)
    probe = "the paper's linear probe" if by_paper else "a linear probe"
    title = f"Accuracy of {probe} after the last step{_spread(arms)}"
    return _table(title, columns, [*random, *rows], " ".join([*about_summary(arms), protocol_line(arms)]))


def along_the_stream(arms: Sequence[Arm]) -> Table:
    """What the accuracy matrix says, where the headline is by another protocol than the matrix."""
    shown = MEASURES | {ALL_CLASSES: measures.all_classes_of_matrix}
    shown.pop("Training (s)")
    columns, rows = _columns(arms, shown)
    random = [_random_row(arms)[:-1]]
    _add_relative_plasticity(columns, random, rows, arms)
    note = (
        "By the cached probe, in all columns: not to be compared with figures of the paper, nor with the accuracy on "
        "all classes above."
    )
    title = f"Along the stream: accuracy of the cached probe{_spread(arms)}"
    return _table(title, columns, [*random, *rows], " ".join([note, *_about_plasticity(arms)]))


def _columns(arms: Sequence[Arm], shown: Mapping[str, Measure]) -> tuple[list[str], list[list[Cell]]]:
    several = ("Seeds",) if has_seeds(arms) else ()
    rows: list[list[Cell]] = [
        [arm.name, *(seeds(arm) for _ in several), *map(arm.estimate, shown.values())] for arm in arms
    ]
    return ["Strategy", *several, *shown], rows


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str) -> Table:
    spare = tuple(name for name in _SPARE if name in columns)
    return Table(title, tuple(columns), tuple(map(tuple, rows)), note, spare)


def _add_relative_plasticity(
    columns: list[str], random: list[list[Cell]], rows: list[list[Cell]], arms: Sequence[Arm]
) -> None:
    above = against_finetuning(measures.learned, arms)
    if PLASTICITY in columns and any(relative := [arm.estimate(above) for arm in arms]):
        _insert(columns, [*random, *rows], PLASTICITY, RELATIVE_PLASTICITY, [*(None for _ in random), *relative])


def _insert(columns: list[str], rows: list[list[Cell]], after: str, name: str, cells: Sequence[Cell]) -> None:
    """Put a column behind another."""
    place = columns.index(after) + 1
    columns.insert(place, name)
    for row, cell in zip(rows, cells, strict=True):
        row.insert(place, cell)


def about_summary(arms: Sequence[Arm]) -> list[str]:
    """What the summary must be read with, without the protocol: first of all what can't be compared."""
    about = [] if has_paper_probe(arms) else _about_plasticity(arms)
    return [*reservations(arms), *_about_test_set(arms), *about]


def _about_plasticity(arms: Sequence[Arm]) -> list[str]:
    """A sentence on what plasticity is, where runs were probed after every step."""
    sentence = (
        "Plasticity: a probe of each step's own classes right after that step, mean over steps; against Finetuning: in "
        "points, seed by seed; below zero, keeping the past costs the present so much."
    )
    return [sentence] if any(arm.estimate(measures.learned) for arm in arms) else []


def num_tested(arms: Sequence[Arm]) -> list[int]:
    """How many test images the accuracy on all classes was measured on, each number once; of older runs none."""
    return sorted({sum(sizes) for record in records_of(arms) if (sizes := record.num_test_images)})


def _about_test_set(arms: Sequence[Arm]) -> list[str]:
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


def every_run(records: Sequence[RunRecord]) -> Table:
    """One row per run: its numbers, and the stamp they must be read with."""
    stamps, arms = [stamp(record) for record in records], make_arms(records)
    further = {
        RELATIVE_PLASTICITY: against_finetuning(measures.learned, arms),
        "peak memory (MB)": measures.peak_megabytes,
    }
    names = {id(record): arm.name for arm in arms for record in arm.records}
    columns = ("arm", "strategy", "objective", *MEASURES, *further, *stamps[0])
    rows = []
    for record, own in zip(records, stamps, strict=True):
        numbers = [measure(record) for measure in (*MEASURES.values(), *further.values())]
        known = [None if math.isnan(number) else number for number in numbers]
        about = (names[id(record)], record.settings.strategy, record.settings.objective)
        rows.append((*about, *known, *own.values()))
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
    # It never learns, so its accuracy on a step's data is the same at any time.
    numbers = (total, fmean(per_step), per_step[0], per_step[0], fmean(per_step))
    known = [None if math.isnan(number) else number for number in numbers]
    return [name, *([None] if has_seeds(arms) else []), *known, None, None, None]


def _random_error(arms: Sequence[Arm]) -> float | None:
    """Of the random initialisation on the test images of the runs that it is taken from."""
    records = records_of(arms)
    total, sizes = random_accuracy(records)[1], records[0].num_test_images
    return None if sizes is None or math.isnan(total) else standard_error(total, sum(sizes))


def _known(about: Estimate | None) -> float | None:
    return None if about is None else about.mean


def seeds(arm: Arm) -> str:
    """An arm's seeds as they are read."""
    orders = [record.settings.data.seed for record in arm.records]
    if len({order for order in orders if order is not None}) > 1:
        return ", ".join(f"{record.settings.seed} (order {record.settings.stream_seed})" for record in arm.records)
    found = [record.settings.seed for record in arm.records]
    is_range = len(found) > 2 and found == list(range(found[0], found[-1] + 1))
    return f"{found[0]}–{found[-1]}" if is_range else ", ".join(map(str, found))
