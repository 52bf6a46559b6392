"""Arms as one table: accuracy, tests against baselines, what is kept and learned, and the price; and every run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ccl.evaluation.paper_probe import PAPER_PROTOCOL
from ccl.report.arms import (
    AXES,
    Arm,
    as_typed,
    has_paper_probe,
    has_seeds,
    make_arms,
    of_first_value,
    partners,
    records_of,
    seeds_of,
    varied_settings,
)
from ccl.report.measures import (
    MEASURES,
    STORED,
    above_random,
    all_classes,
    all_classes_of_matrix,
    error_by_test_set,
    random_accuracy,
    training_effort,
)
from ccl.report.seed_statistics import Difference, Share, gap_share, holm, paired_difference, verdict
from ccl.report.tables import Cell, Table, interval, text
from ccl.runs.run_folder import RunRecord
from ccl.settings import Settings
from ccl.strategies import STRATEGIES, asks_clusters

Found = TypeVar("Found")
RANDOM_TITLE = "Random initialisation"
ALL_CLASSES = "All classes (%)"
FIRST_VALUE = "first value"
BASELINES = ("finetuning", "simple_rehearsal")
KINDS = (*BASELINES, FIRST_VALUE)
# Each test makes the others weaker: Finetuning against Simple Rehearsal is the reverse of a test that is made.
_UNTESTED = {"simple_rehearsal": ("finetuning", "upper_bound")}
ALONG_THE_STREAM = ("Forgetting ↓", "Forward Transfer ↑", "Plasticity (%)")
# The first to go on a narrow terminal come first.
_SPARE = (
    *("Memory (MB)", "Training (s)", "Seeds", "Stored (kB)", "Forward Transfer ↑", "Plasticity (%)"),
    *("Above Simple Rehearsal", "Gap closed (%)", "Time", "In words", "Above the first value"),
)
_TESTS = (
    "Differences: in points over equal seeds with 95 % intervals; p of paired t-tests, corrected for their number by "
    "Holm's method, significant below 0.05."
)
_ABOUT = {
    "Gap closed (%)": "Gap closed: of the way from Finetuning to Upper Bound, with Fieller's 95 % interval.",
    "Plasticity (%)": "Plasticity: a probe of each step's own classes right after that step, mean over steps.",
    "Time": "Time: of training (on a CPU, of the processor), as a multiple of Finetuning's.",
    "Stored (kB)": "Stored: beside the encoder at the end: images, vectors such as queues, and further networks.",
}
# Facts of the data and the measurement that must agree for numbers to answer one question.
_MUST_AGREE = ("dataset", "dataset fingerprint", "probe")


@dataclass(frozen=True)
class Comparison:
    """An arm against a baseline of its own objective and number of steps, over equal seeds."""

    arm: Arm
    baseline: Arm
    kind: str  # of baseline: one of BASELINES, or FIRST_VALUE
    difference: Difference
    p_value: float  # corrected for all tests made together; nan for one seed
    share: Share | None  # of the gap from Finetuning to Upper Bound; None where there is no such gap

    @property
    def words(self) -> str:
        return verdict(self.difference, self.p_value)

    @property
    def p_in_words(self) -> str | None:
        return None if math.isnan(self.p_value) else "< 0.001" if self.p_value < 0.001 else f"{self.p_value:.3f}"


def comparisons(arms: Sequence[Arm]) -> list[Comparison]:
    """All tests on all classes: against Finetuning, Simple Rehearsal and the first of crossed values."""
    pairs = [
        (arm, baseline, strategy)
        for strategy in BASELINES
        for arm in arms
        for baseline in partners(arm, arms, strategy)
        if arm.strategy not in (strategy, *_UNTESTED.get(strategy, ()))
    ]
    pairs += [(arm, first, FIRST_VALUE) for arm in arms if (first := of_first_value(arm, arms)) is not None]
    paired = [(pair, _over_equal_seeds(paired_difference, pair[:2])) for pair in pairs]
    found = [(pair, difference) for pair, difference in paired if difference is not None]
    corrected = holm([difference.p_value for _, difference in found])
    return [
        Comparison(*pair, difference, p_value, _share(*pair, arms))
        for (pair, difference), p_value in zip(found, corrected, strict=True)
    ]


def _over_equal_seeds(compute: Callable[..., Found], arms: Sequence[Arm]) -> Found | None:
    """A function of the arms' accuracies at the seeds that all of them have; None where they share none."""
    values = [arm.values(all_classes) for arm in arms]
    common = sorted(set.intersection(*(set(found) for found in values)))
    return compute(*([found[seed] for seed in common] for found in values)) if common else None


def _share(arm: Arm, baseline: Arm, kind: str, arms: Sequence[Arm]) -> Share | None:
    tops = partners(arm, arms, "upper_bound")
    if kind != "finetuning" or not tops or arm.is_all_at_once:
        return None
    share = _over_equal_seeds(gap_share, [baseline, arm, tops[0]])
    return None if share is None or math.isnan(share.value) else share


def arm_table(arms: Sequence[Arm]) -> Table:
    """A row per arm, the most accurate first, and one for random initialisation; columns without a number go out."""
    by_paper, tested = has_paper_probe(arms), comparisons(arms)
    random = math.nan if by_paper else random_accuracy(records_of(arms))[1]
    below = [arm.name for arm in arms if arm.mean(above_random) < 0]
    ranked = [(arm.mean(all_classes), _row(arm, arms, tested, arm.name in below)) for arm in arms]
    columns = list(ranked[0][1])
    if not math.isnan(random):
        ranked.append((random, dict.fromkeys(columns) | {"Strategy": RANDOM_TITLE, ALL_CLASSES: random}))
    ranked.sort(key=lambda pair: math.inf if math.isnan(pair[0]) else -pair[0])
    rows = [row for _, row in ranked]
    shown = [name for name in columns if name == ALL_CLASSES or any(row[name] is not None for row in rows)]
    warnings = [f"Below random initialisation: {', '.join(below)}."] if below else []
    probe = "the paper's linear probe" if by_paper else "a linear probe"
    return Table(
        f"Accuracy of {probe} after the last step{_spread(arms)}",
        tuple(shown),
        tuple(tuple(row[name] for name in shown) for row in rows),
        " ".join([*about_columns(arms, shown), protocol_line(arms)]),
        tuple(name for name in _SPARE if name in shown),
        " ".join([*warnings, *reservations(arms)]),
    )


def _row(arm: Arm, arms: Sequence[Arm], tested: Sequence[Comparison], is_below_random: bool) -> dict[str, Cell]:
    """An arm's cells by their columns; a new measure stands in `measures.py`, with its words in `_ABOUT`."""
    own = [one for one in tested if one.arm is arm]
    beside = {kind: found[0] for kind in KINDS if len(found := [one for one in own if one.kind == kind]) == 1}
    finetuning = beside.get("finetuning")
    share, closed = None if finetuning is None else finetuning.share, None
    if share is not None:
        bounds = interval(100 * share.low, 100 * share.high, 0)
        closed = f"{100 * share.value:z.0f}" + ("" if bounds is None else f" ({bounds})")
    measured = (() if has_paper_probe(arms) else ALONG_THE_STREAM), ("Training (s)", "Memory (MB)")
    along, prices = ({name: arm.estimate(MEASURES[name]) for name in names} for names in measured)
    kept = [arm.mean(MEASURES[column]) for column in STORED]
    priced = arm if arm.strategy == "finetuning" else next(iter(partners(arm, arms, "finetuning")), None)
    time = math.nan if priced is None else arm.mean(training_effort) / priced.mean(training_effort)
    return {
        "Strategy": f"{arm.name} (below random initialisation)" if is_below_random else arm.name,
        "Seeds": seeds_in_words(arm) if has_seeds(arms) else None,
        ALL_CLASSES: arm.estimate(all_classes),
        "Above Finetuning": None if finetuning is None else finetuning.difference,
        "p": None if finetuning is None else finetuning.p_in_words,
        "In words": None if finetuning is None else finetuning.words,
        "Gap closed (%)": closed,
        "Above Simple Rehearsal": _in_one_cell(beside.get("simple_rehearsal")),
        "Above the first value": _in_one_cell(beside.get(FIRST_VALUE)),
        **along,
        "Time": None if math.isnan(time) else f"{time:.2f}×",
        **prices,
        "Stored (kB)": None if math.isnan(sum(kept)) else sum(kept),
    }


def _in_one_cell(found: Comparison | None) -> str | None:
    if found is None:
        return None
    return text(found.difference) + ("" if found.p_in_words is None else f", p {found.p_in_words}")


def about_columns(arms: Sequence[Arm], shown: Sequence[str]) -> list[str]:
    """Sentences on what the columns are."""
    found, about = [], dict(_ABOUT)
    if errors := [error.mean for arm in arms if (error := arm.estimate(error_by_test_set))]:
        sizes = sorted({sum(sizes) for record in records_of(arms) if (sizes := record.num_test_images)})
        found.append(
            f"All classes: on {' or '.join(f'{size:,}' for size in sizes)} test images; another draw of as many would "
            f"change it by about ±{max(errors):.1f} points, which no interval over seeds contains."
        )
    found += [_TESTS] if {"Above Finetuning", "Above the first value"} & set(shown) else []
    firsts = [first for arm in arms if (first := of_first_value(arm, arms)) is not None]
    values = dict.fromkeys(f"{name}={as_typed(value)}" for one in firsts for name, value in one.crossed.items())
    about["Above the first value"] = f"First value: {', '.join(values)}."
    found += [sentence for name, sentence in about.items() if name in shown]
    if counting := [arm.name for arm in arms if _counts_classes(arm.settings)]:
        found.append(f"From labels the number of classes of each step is taken by {', '.join(counting)}.")
    return found


def _counts_classes(settings: Settings) -> bool:
    """Whether a method takes the number of clusters from labels."""
    row, memory = STRATEGIES.get(settings.strategy), settings.memory
    if row is None or row.selection is None or memory.clusters is not None:
        return False
    return asks_clusters(memory.selection or row.selection, memory.per_cluster, memory.budget is not None)


def along_the_stream(arms: Sequence[Arm]) -> Table:
    """What the accuracy matrix says, where the headline is by another protocol than the matrix."""
    measures = (all_classes_of_matrix, *(MEASURES[name] for name in ALONG_THE_STREAM))
    rows: list[tuple[Cell, ...]] = [(arm.name, *map(arm.estimate, measures)) for arm in arms]
    random = random_accuracy(records_of(arms))[1]
    rows += [] if math.isnan(random) else [(RANDOM_TITLE, random, *[None] * len(ALONG_THE_STREAM))]
    note = "By the cached probe, in all columns: not to be compared with the paper's figures, nor with the table above."
    title = f"Along the stream: accuracy of the cached probe{_spread(arms)}"
    return Table(title, ("Strategy", ALL_CLASSES, *ALONG_THE_STREAM), tuple(rows), note)


def differences(arms: Sequence[Arm]) -> Table:
    """Every test that was made, a row each, in points; shares of the gap in percent, with their interval."""
    shares = (f"Gap closed{part} (%)" for part in ("", ", low", ", high"))
    columns = ("Strategy", "against", "Points", "p", "In words", *shares)
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(arms):
        share = (math.nan,) * 3 if one.share is None else (one.share.value, one.share.low, one.share.high)
        closed = (None if math.isnan(value) else 100 * value for value in share)
        p_value = None if math.isnan(one.p_value) else f"{one.p_value:.2g}"
        rows.append((one.arm.name, one.baseline.name, one.difference, p_value, one.words, *closed))
    return Table("Paired differences over equal seeds, all classes", columns, tuple(rows), "")


def every_run(records: Sequence[RunRecord]) -> Table:
    """One row per run: its numbers, and the stamp they must be read with."""
    stamps, arms = [stamp(record) for record in records], make_arms(records)
    names = {id(record): arm.name for arm in arms for record in arm.records}
    rows = []
    for record, own in zip(records, stamps, strict=True):
        numbers = [measure(record) for measure in MEASURES.values()]
        known = [None if math.isnan(number) else number for number in numbers]
        about = (names[id(record)], record.settings.strategy, record.settings.objective)
        rows.append((*about, *known, *own.values()))
    return Table("Every run", ("arm", "strategy", "objective", *MEASURES, *stamps[0]), tuple(rows), "")


def stamp(record: RunRecord) -> dict[str, str]:
    """A run's protocol in fixed fields; empty where something is unknown."""
    settings, protocol = record.settings, {key: str(value) for key, value in record.protocol.items()}
    width = settings.encoder.width
    probes = dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe")
    return {
        "dataset": protocol.get("dataset", ""),
        "dataset fingerprint": protocol.get("fingerprint", ""),
        "stream": settings.stream_kind,
        "class order": protocol.get("class_order", ""),
        "steps (T)": str(len(record.step_names)),
        "backbone": protocol.get("backbone", "") + (f" of width {width}" if width else ""),
        "stem": protocol.get("stem", ""),
        "epochs per step": str(settings.epochs),
        "batch size": str(settings.batch_size),
        "views": protocol.get("views", ""),
        "probe": ", ".join([f"{PAPER_PROTOCOL} (all classes)"] * record.has_paper_probe + list(probes)),
        "seed": protocol.get("seed", ""),
        "device": protocol.get("device", ""),
        "threads": protocol.get("threads", ""),
        "processes": protocol.get("world_size", ""),
        "ccl": protocol.get("ccl", ""),
        "code": protocol.get("code", ""),
        "torch": protocol.get("torch", ""),
        "Python": protocol.get("python", ""),
    }


def protocol_line(arms: Sequence[Arm]) -> str:
    """The protocol of all numbers of these arms, each fact once."""
    values = _stamped(records_of(arms))
    if len(orders := values["class order"]) > 4:
        values["class order"] = [f"{len(orders)} orders, by seed and T"]
    protocol = "; ".join(f"{key} {' / '.join(found) or 'unknown'}" for key, found in values.items())
    return f"Protocol: {protocol}."


def _stamped(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The values of each field of the stamps, each once."""
    stamps = [stamp(record) for record in records]
    return {key: list(dict.fromkeys(one[key] for one in stamps if one[key])) for key in stamps[0]}


def reservations(arms: Sequence[Arm]) -> list[str]:
    """In sentences: what can't be compared, and what is not complete."""
    records, crossed = records_of(arms), {name for arm in arms for name in arm.crossed}
    values = _stamped(records)
    different = [key for key in _MUST_AGREE if len(values[key]) > 1]
    # A seed draws the order of classes: runs of the same seeds and number of steps must have the same.
    orders = {(seeds_of(record), len(record.step_names), stamp(record)["class order"]) for record in records}
    different += ["class order"] * (len(orders) > len({order[:2] for order in orders}))
    different += [name for name in varied_settings(records) if name not in {*AXES, *crossed, *different}]
    unfinished = [
        f"{arm.name}, seed {record.settings.seed} ({record.status.get('state', 'unknown')})"
        for arm in arms
        for record in arm.records
        if record.status.get("state") != "complete"
    ]
    found = [f"These runs differ in {', '.join(different)}: not to be compared as they stand."] if different else []
    return [*found, f"Not complete: {'; '.join(unfinished)}."] if unfinished else found


def seeds_in_words(arm: Arm) -> str:
    """An arm's seeds as they are read."""
    if len({record.settings.data.seed for record in arm.records}) > 1:
        return ", ".join(f"{seed} (order {order})" for seed, order in map(seeds_of, arm.records))
    found = [record.settings.seed for record in arm.records]
    is_range = len(found) > 2 and found == list(range(found[0], found[-1] + 1))
    return f"{found[0]}–{found[-1]}" if is_range else ", ".join(map(str, found))


def _spread(arms: Sequence[Arm]) -> str:
    return "; mean ± standard deviation over seeds" if has_seeds(arms) else ""
