"""The table of arms: numbers computed by hand, gaps where nothing was measured, tests, prices and warnings."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ccl.errors import UserError
from ccl.report.arm_table import arm_table, comparisons, differences, every_run
from ccl.report.arms import make_arms
from ccl.report.seed_statistics import Estimate
from ccl.report.tables import Table, text, to_csv
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
#   all classes: (60+72+90)/3/2 = 37; plasticity (80+84+90)/3 = 84.7;
#   Forgetting ((80-60)+(84-72))/2 = 16; FT ((40-32)+(50-34))/2 = 12
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]


def shifted(by: float) -> list[list[float]]:
    """On all classes higher by half of it."""
    return [FORGETS[0], *([value + by for value in row] for row in FORGETS[1:])]


def table_of(records: Sequence[RunRecord]) -> Table:
    return arm_table(make_arms(records))


def columns(table: Table, *names: str) -> list[list[str]]:
    places = [table.columns.index(name) for name in names]
    return [[text(row[place]) for place in places] for row in table.rows]


def by_name(table: Table, column: str) -> dict[str, str]:
    return {row[0]: row[1] for row in columns(table, "Strategy", column)}


def test_every_cell_is_the_number_computed_by_hand(record_of: Make) -> None:
    table = table_of([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])
    shown = ("Strategy", "All classes (%)", "Above Finetuning", "In words", "Forgetting ↓", "Forward Transfer ↑")
    assert columns(table, *shown, "Plasticity (%)", "Training (s)") == [
        ["Upper Bound", "46.0", "+9.0", "one seed, no test", "–", "–", "–", "2.5"],
        ["Finetuning", "37.0", "–", "–", "16.0", "12.0", "84.7", "7.5"],
        ["Random initialisation", "16.0", *"–––––", "–"],
    ]
    assert not {"Seeds", "p", "Gap closed (%)", "Stored (kB)"} & set(table.columns)  # nothing to say there
    assert table.warning == ""


def test_what_was_not_measured_is_a_gap_and_no_zero(record_of: Make) -> None:
    stopped = record_of("ccl", [*FORGETS[:3], None], state="stopped")
    unmeasured = record_of("finetuning", None)
    table = table_of([stopped, unmeasured])
    assert [row[:2] for row in columns(table, *table.columns)] == [
        ["Random initialisation", "16.0"],
        ["CCL", "–"],
        ["Finetuning", "–"],
    ]
    assert table.warning == "Not complete: CCL, seed 0 (stopped)."
    assert columns(table_of([record_of("ccl", AT_ONCE)]), "All classes (%)") == [["46.0"], ["16.0"]]
    assert "Forgetting ↓" not in table_of([record_of("ccl", AT_ONCE)]).columns  # probed at its end only
    without_random = table_of([record_of("ccl", [None, *FORGETS[1:]])])
    assert by_name(without_random, "Forgetting ↓") == {"CCL": "16.0"}
    assert "Forward Transfer ↑" not in without_random.columns
    one_step = table_of([record_of("ccl", [[30], [80]], names=("digits",))])
    assert by_name(one_step, "Plasticity (%)")["CCL"] == "80.0"
    assert not {"Forgetting ↓", "Forward Transfer ↑"} & set(one_step.columns)
    with pytest.raises(UserError, match="no runs to report on"):
        table_of([])


def test_an_arm_below_random_initialisation_says_so_first(record_of: Make) -> None:
    """All classes before training: 16. CCL reaches 15 on one seed and 16 on the other."""
    runs = [record_of("ccl", [*FORGETS[:3], [20, 30, value]], f"seed={seed}") for seed, value in ((0, 40), (1, 46))]
    table = table_of([record_of("finetuning", FORGETS), *runs])
    names = [row[0] for row in table.rows]
    assert names == ["Finetuning", "Random initialisation", "CCL (below random initialisation)"]
    assert table.warning == "Below random initialisation: CCL."
    assert table_of([record_of("finetuning", FORGETS)]).warning == ""


def test_random_rows_that_differ_are_averaged_and_counted_once_each(record_of: Make) -> None:
    other = [[40, 42, 44], *FORGETS[1:]]
    records = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS), record_of("ccl", other, "seed=1")]
    assert by_name(table_of(records), "All classes (%)")["Random initialisation"] == "18.5"


def test_the_note_says_what_the_size_of_the_test_set_leaves_open(record_of: Make) -> None:
    """37 % of 100 images: √(37 · 63 / 100) = 4.8, not smaller with two seeds."""
    steps = [{"name": name, "num_test_images": size} for name, size in (("a", 50), ("b", 30), ("c", 20))]
    runs = [record_of("finetuning", FORGETS, f"seed={seed}", steps=steps) for seed in (0, 1)]
    assert "on 100 test images; another draw of as many would change it by about ±4.8 points" in table_of(runs).note


def test_the_note_names_who_counts_classes_by_labels(record_of: Make) -> None:
    records = [record_of("finetuning", FORGETS), record_of("ccl", FORGETS), record_of("shared_rehearsal", FORGETS)]
    assert "From labels the number of classes of each step is taken by CCL, Shared Rehearsal." in table_of(records).note
    assert "From labels" not in table_of(records[:1]).note
    counted = [record_of("ccl", FORGETS, "memory.clusters=5")]
    assert "From labels" not in table_of(counted).note


def test_names_say_what_the_runs_differ_in_and_no_more(record_of: Make) -> None:
    def names(*records: RunRecord) -> list[str]:
        return [arm.name for arm in make_arms(records)]

    ccl, plain = record_of("ccl", FORGETS), record_of("finetuning", FORGETS)
    assert names(ccl, plain) == ["CCL", "Finetuning"]
    assert names(ccl, record_of("ccl", FORGETS, "seed=3")) == ["CCL"]
    assert names(ccl, record_of("ccl", FORGETS, "objective=simclr")) == ["CCL, MoCoV2", "CCL, SimCLR"]
    less = record_of("ccl", FORGETS, "extra_sample_queue.size=32", "threads=7", "data.root=elsewhere")
    assert names(ccl, less) == ["CCL, extra_sample_queue.size=13", "CCL, extra_sample_queue.size=32"]
    # What a strategy wants by default belongs to its name.
    recipe = record_of("balanced_rehearsal", FORGETS, "strategy=balanced_rehearsal")
    features = record_of("pfr", FORGETS, "strategy=pfr")
    assert names(ccl, recipe, features) == ["CCL", "Balanced Rehearsal", "PFR"]
    lighter = record_of("balanced_rehearsal", FORGETS, "strategy=balanced_rehearsal", "weights.contrast=0.5")
    assert names(recipe, lighter) == [f"Balanced Rehearsal, weights.contrast={weight}" for weight in (1.0, 0.5)]
    short, long = record_of("ccl", FORGETS, "epochs=1"), record_of("finetuning", FORGETS, "epochs=2")
    assert names(short, long) == ["CCL, epochs=1", "Finetuning, epochs=2"]
    elsewhere = record_of("ccl", FORGETS, folder="other/ccl")  # a second run of one seed is no second seed
    assert names(ccl, elsewhere) == ["CCL (runs/ccl)", "CCL (other/ccl)"]


def test_the_note_names_the_protocol_and_every_run_carries_it(record_of: Make) -> None:
    records = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS, "seed=1", class_order="3210")]
    note = table_of(records).note
    for fact in ("dataset digits+capitals+greek;", "fingerprint f00d;", "steps (T) 3;", "seed 0 / 1;", "torch 2.6.0;"):
        assert fact in note
    read = list(csv.DictReader(io.StringIO(to_csv(every_run(records)))))
    assert [(row["seed"], row["class order"]) for row in read] == [("0", "0123"), ("1", "3210")]
    assert all(row[fact] for row in read for fact in ("dataset fingerprint", "stem", "batch size", "probe", "ccl"))
    assert [row["First step, at the end (%)"] for row in read] == ["60.000"] * 2


@pytest.mark.parametrize(
    ("changes", "told", "named"),
    [
        ([], {"fingerprint": "beef"}, "dataset fingerprint"),
        ([], {"class_order": "3210"}, "class order"),
        (["encoder.backbone=resnet18"], {}, "encoder.backbone"),
        (["encoder.stem=imagenet"], {}, "encoder.stem"),
        (["epochs=31"], {}, "epochs"),
        (["batch_size=32"], {"fingerprint": "beef"}, "dataset fingerprint, batch_size"),
        (["memory.per_cluster=3"], {}, "memory.per_cluster"),
        (["views.size=20"], {}, "views.size"),
    ],
)
def test_what_differs_beside_the_strategy_is_named_first(
    record_of: Make, changes: list[str], told: dict[str, str], named: str
) -> None:
    table = table_of([record_of("finetuning", FORGETS), record_of("ccl", FORGETS, *changes, **told)])
    assert table.warning == f"These runs differ in {named}: not to be compared as they stand."


@pytest.fixture
def crossed(record_of: Make) -> list[RunRecord]:
    """Temperatures 0.1, 0.2 and 0.4 of Finetuning and CCL on three seeds: CCL at 0.2 is 2 (±0.2) above that at 0.1.

    CCL is 1 above the Finetuning of its own temperature; queue sizes would only matter to CCL.
    """
    return [
        record_of(strategy, shifted(10.0 * seed + 2 * rise + more), f"seed={seed}", f"temperature={value}")
        for seed, noise in enumerate((0.0, 0.2, -0.2))
        for strategy, more in (("finetuning", 0.0), ("ccl", 2.0))
        for value, rise in (("0.1", 0.0), ("0.2", 2.0 + noise), ("0.4", -3.0 + 2 * noise))
    ]


def test_crossed_settings_are_arms_with_differences_to_the_first_value(crossed: list[RunRecord]) -> None:
    table = table_of(crossed)
    assert table.warning == ""
    assert "First value: temperature=0.1." in table.note
    found = by_name(table, "Above the first value")
    # Differences 2, 2.2, 1.8: t = 2 ÷ (0.2 ÷ √3) = 17.3, p = 0.0033; seven tests together.
    assert found["CCL, temperature=0.2"].startswith("+2.0 (1.5 to 2.5), p 0.0")
    assert found["Finetuning, temperature=0.4"].startswith("-3.0 (-4.0 to -2.0), p 0.0")
    assert {name for name, cell in found.items() if cell == "–"} == {
        "Finetuning, temperature=0.1",
        "CCL, temperature=0.1",
        "Random initialisation",
    }
    tests = [(one.arm.name, one.baseline.name, one.kind) for one in comparisons(make_arms(crossed))]
    own = [(f"CCL, temperature={value}", f"Finetuning, temperature={value}", "finetuning") for value in (0.1, 0.2, 0.4)]
    assert tests[:3] == own  # each value against the baseline of the same value
    assert len(tests) == 3 + 4
    assert set(by_name(table, "Above Finetuning").values()) == {"+1.0 (1.0 to 1.0)", "–"}


def test_a_setting_that_only_one_strategy_looks_at_is_crossed_within_it(record_of: Make) -> None:
    runs = [record_of("finetuning", FORGETS, f"seed={seed}") for seed in (0, 1)]
    for size in (8, 32):
        rows = shifted(size / 8)
        runs += [record_of("ccl", rows, f"seed={seed}", f"extra_sample_queue.size={size}") for seed in (0, 1)]
    table = table_of(runs)
    assert table.warning == ""
    assert by_name(table, "Above Finetuning") == {
        "CCL, extra_sample_queue.size=32": "+2.0 (2.0 to 2.0)",
        "CCL, extra_sample_queue.size=8": "+0.5 (0.5 to 0.5)",
        "Finetuning": "–",
        "Random initialisation": "–",
    }
    assert by_name(table, "Above the first value")["CCL, extra_sample_queue.size=32"].startswith("+1.5 (1.5 to 1.5)")


@pytest.fixture
def grid(record_of: Make) -> list[RunRecord]:
    """Three seeds: Simple Rehearsal gains 2 (±0.2) over Finetuning in the halves of all classes, Upper Bound 5."""
    records = []
    for seed, noise in enumerate((0.0, 0.4, -0.4)):
        own, order = (f"seed={seed}",), {"class_order": f"order {seed}"}
        records += [
            record_of("finetuning", shifted(10.0 * seed), *own, **order),
            record_of("simple_rehearsal", shifted(10.0 * seed + 4 + noise), *own, **order),
            record_of("upper_bound", [FORGETS[0], None, None, shifted(10.0 * seed + 10)[-1]], *own, **order),
        ]
    return records


def test_seeds_become_means_spreads_and_tests(grid: list[RunRecord]) -> None:
    table = table_of(grid)
    shown = ("Strategy", "Seeds", "All classes (%)", "Above Finetuning", "p", "In words", "Gap closed (%)")
    # Differences 2, 2.2, 1.8: std 0.2, t = 2 ÷ (0.2 ÷ √3) = 17.3 with 2 degrees, p = 0.0033; Holm: the larger, ·1
    assert columns(table, *shown) == [
        ["Upper Bound", "0–2", "47.0 ± 5.0", "+5.0 (5.0 to 5.0)", "< 0.001", "better", "–"],
        ["Simple Rehearsal", "0–2", "44.0 ± 4.9", "+2.0 (1.5 to 2.5)", "0.003", "better", "40 (30 to 50)"],
        ["Finetuning", "0–2", "42.0 ± 5.0", "–", "–", "–", "–"],  # 37, 42, 47
        ["Random initialisation", "–", "16.0", "–", "–", "–", "–"],
    ]
    found = table.rows[2][2]
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((42 - 12.42, 42 + 12.42), abs=0.01)  # 4.303 · 5 ÷ √3
    assert table.warning == ""
    rows = [[text(cell) for cell in row] for row in differences(make_arms(grid)).rows]
    assert rows[0][1:] == ["Finetuning", "+2.0 (1.5 to 2.5)", "0.0033", "better", "40.0", "30.1", "49.9"]


def test_simple_rehearsal_is_a_second_baseline(grid: list[RunRecord], record_of: Make) -> None:
    ccl = [record_of("ccl", shifted(10.0 * seed + 4), f"seed={seed}", class_order=f"order {seed}") for seed in range(3)]
    found = by_name(table_of([*grid, *ccl]), "Above Simple Rehearsal")
    assert found.pop("CCL") == "+0.0 (-0.5 to 0.5), p 1.000"
    assert set(found.values()) == {"–"}


def test_only_equal_seeds_are_paired(record_of: Make) -> None:
    records = [record_of("finetuning", FORGETS, f"seed={seed}") for seed in (0, 1)]
    records += [record_of("ccl", shifted(2.0 * seed), f"seed={seed}") for seed in (1, 2)]
    (row,) = differences(make_arms(records)).rows
    assert (text(row[2]), row[3], row[4]) == ("+1.0", None, "one seed, no test")
    apart = [record_of("finetuning", FORGETS), record_of("ccl", FORGETS, "seed=1")]
    assert differences(make_arms(apart)).rows == ()


def test_runs_of_one_seed_and_several_orders_are_averaged_and_paired(record_of: Make) -> None:
    records = [
        record_of(strategy, shifted(more + order), f"data.seed={order}", folder=f"{strategy}{order}")
        for strategy, more in (("finetuning", 0.0), ("ccl", 4.0))
        for order in (0, 1, 2)
    ]
    table = table_of(records)
    assert columns(table, "Strategy", "Seeds", "Above Finetuning")[0] == [
        "CCL",
        "0 (order 0), 0 (order 1), 0 (order 2)",
        "+2.0 (2.0 to 2.0)",  # on all classes half of it
    ]


def test_baselines_are_matched_by_objective_and_steps(record_of: Make) -> None:
    five = ("a", "b", "c", "d", "e")
    long = [[float(10 * i + j) for j in range(5)] for i in range(6)]
    records = [
        record_of("finetuning", FORGETS),
        record_of("finetuning", long, "steps=5", names=five),
        record_of("ccl", shifted(2.0), "objective=simclr"),
        record_of("ccl", long, "steps=5", names=five),
        record_of("upper_bound", AT_ONCE),
    ]
    assert [(row[0], row[1]) for row in differences(make_arms(records)).rows] == [
        ("CCL, MoCoV2, T = 5", "Finetuning, MoCoV2, T = 5"),
        ("Upper Bound, MoCoV2", "Finetuning, MoCoV2, T = 3"),
        ("Upper Bound, MoCoV2", "Finetuning, MoCoV2, T = 5"),
    ]
    assert by_name(table_of(records), "Above Finetuning")["Upper Bound, MoCoV2"] == "–"  # of two it can't be one number


def priced(record: RunRecord, stored: dict[str, float] | None = None, **epoch: float) -> RunRecord:
    rows: list[dict[str, Any]] = [row for row in record.rows if row["kind"] != "epoch"]
    status = {"state": "complete", "peak_memory_bytes": 5e6} | ({} if stored is None else {"stored_bytes": stored})
    return replace(record, rows=[*rows, {"kind": "epoch", **epoch}], status=status)


@pytest.mark.parametrize(("device", "price"), [("cpu", "1.50×"), ("cuda:0", "4.00×")])
def test_a_price_is_relative_to_finetuning_and_on_a_cpu_in_processor_time(
    record_of: Make, device: str, price: str
) -> None:
    kept = {"images": 1000, "vectors": 2000, "networks": 30_000}
    runs = [
        priced(record_of("finetuning", FORGETS, device=device), seconds=10.0, cpu_seconds=4.0),
        priced(record_of("ccl", shifted(2.0), device=device), kept, seconds=40.0, cpu_seconds=6.0),
        priced(record_of("ccl", FORGETS, "objective=simclr", device=device), seconds=40.0, cpu_seconds=6.0),
    ]
    table = table_of(runs)
    assert columns(table, "Strategy", "Time", "Training (s)", "Memory (MB)", "Stored (kB)")[:3] == [
        ["CCL, MoCoV2", price, "40.0", "5.0", "33.0"],
        ["Finetuning, MoCoV2", "1.00×", "10.0", "5.0", "–"],
        ["CCL, SimCLR", "–", "40.0", "5.0", "–"],  # no Finetuning of the same objective
    ]
    read = list(csv.DictReader(io.StringIO(to_csv(every_run(runs)))))
    assert [read[1][f"{what} (kB)"] for what in kept] == ["1.000", "2.000", "30.000"]
