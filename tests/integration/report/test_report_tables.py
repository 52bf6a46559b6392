"""The summary: numbers computed by hand, gaps where nothing was measured, and texts that read back."""

import csv
import io
import math
from collections.abc import Callable, Sequence

import pytest

from ccl.errors import UserError
from ccl.report.comparisons import differences
from ccl.report.run_groups import make_arms
from ccl.report.seed_statistics import Estimate
from ccl.report.summary import MEASURES, every_run
from ccl.report.summary import summary as summary_of_arms
from ccl.report.tables import Table, text, to_csv, to_latex, to_markdown, to_rich
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
#   all classes: (60+72+90)/3/2 = 37; mean 74; plasticity (80+84+90)/3 = 84.7;
#   Forgetting ((80-60)+(84-72))/2 = 16; FT ((40-32)+(50-34))/2 = 12
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]


COLUMNS = ("Strategy", *MEASURES)


def summary(records: Sequence[RunRecord]) -> Table:
    return summary_of_arms(make_arms(records))


def cells(table: Table) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in table.rows]


def test_every_cell_is_the_number_computed_by_hand(record_of: Make) -> None:
    table = summary([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])
    assert table.columns == COLUMNS
    assert cells(table) == [
        ["Random initialisation", "16.0", "32.0", "30.0", "30.0", "32.0", "–", "–", "–"],
        ["Finetuning", "37.0", "74.0", "80.0", "60.0", "84.7", "16.0", "12.0", "7.5"],
        ["Upper Bound", "46.0", "92.0", "–", "90.0", "–", "–", "–", "2.5"],
    ]


def test_plasticity_stands_beside_that_of_finetuning_on_the_same_seed(record_of: Make) -> None:
    """One step in three is 6 or 9 lower: 2 or 3 points; a run that was probed only at its end has none."""
    changed = [[row[:] for row in FORGETS] for _ in range(2)]
    changed[0][2][1] -= 6
    changed[1][3][2] -= 9
    records = [record_of("finetuning", shifted(10.0 * seed), f"seed={seed}") for seed in (0, 1, 2)]
    records += [record_of("ccl", rows, f"seed={seed}") for seed, rows in enumerate([changed[0], shifted(4.0), AT_ONCE])]
    records.append(record_of("simple_rehearsal", changed[1], "seed=0"))
    table = summary(records)
    place = table.columns.index("Plasticity (%)")
    assert table.columns[place + 1] == "Plasticity against Finetuning"
    assert [row[place : place + 2] for row in cells(table)] == [
        ["32.0", "–"],
        ["94.7 ± 10.0", "–"],
        ["85.7 ± 4.2", "-4.0 ± 2.8"],  # 82.7 and 88.7; 2 below seed 0's, 6 below seed 1's
        ["81.7", "-3.0"],
    ]
    assert "Plasticity: a probe of each step's own classes right after that step" in table.note
    read = [row["Plasticity against Finetuning"] for row in csv.DictReader(io.StringIO(to_csv(every_run(records))))]
    assert read == ["", "", "", "-2.000", "-6.000", "", "-3.000"]


def test_without_finetuning_there_is_nothing_to_stand_against(record_of: Make) -> None:
    table = summary([record_of("ccl", FORGETS), record_of("finetuning", FORGETS, "objective=simclr")])
    assert table.columns == COLUMNS
    alone = summary([record_of("ccl", AT_ONCE)])
    assert "Plasticity:" not in alone.note


def with_test_images(*sizes: int) -> dict[str, object]:
    """A protocol that says how many test images each step has."""
    names = ("digits", "capitals", "greek")
    return {"steps": [{"name": name, "num_test_images": size} for name, size in zip(names, sizes, strict=True)]}


def test_the_standard_error_by_the_test_set_stands_beside_the_accuracy(record_of: Make) -> None:
    """37 % of 100 images: √(37 · 63 / 100) = 4.83; 16 % before training: √(16 · 84 / 100) = 3.67."""
    runs = [record_of("finetuning", FORGETS, f"seed={seed}", **with_test_images(50, 30, 20)) for seed in (0, 1)]
    table = summary([*runs, record_of("ccl", FORGETS)])
    assert table.columns[2:4] == ("All classes (%)", "± by test set")
    assert [row[3] for row in cells(table)] == ["3.7", "4.8", "–"]  # not smaller with two seeds; older runs don't say
    assert "All classes: on 100 test images; ± by test set: the standard error" in table.note


def test_an_unfinished_run_has_gaps_where_the_end_is_not_known(record_of: Make) -> None:
    table = summary([record_of("ccl", [*FORGETS[:3], None], state="stopped"), record_of("finetuning", None)])
    assert cells(table)[1:] == [
        ["CCL", "–", "–", "80.0", "–", "–", "–", "–", "7.5"],
        ["Finetuning", "–", "–", "–", "–", "–", "–", "–", "7.5"],
    ]
    assert "Not complete: CCL, seed 0 (stopped)." in table.note


def test_a_run_probed_only_at_its_end_has_no_forgetting_rather_than_zero(record_of: Make) -> None:
    row = cells(summary([record_of("ccl", AT_ONCE)]))[1]
    assert row[1:8] == ["46.0", "92.0", "–", "90.0", "–", "–", "–"]


def test_without_a_random_row_there_is_no_forward_transfer(record_of: Make) -> None:
    table = cells(summary([record_of("ccl", [None, *FORGETS[1:]])]))
    assert table[0] == ["Random initialisation", *["–"] * 8]
    assert table[1][6:8] == ["16.0", "–"]


def test_a_stream_of_one_step_has_neither_forgetting_nor_transfer(record_of: Make) -> None:
    table = cells(summary([record_of("ccl", [[30], [80]], names=("digits",))]))
    assert table[1] == ["CCL", "40.0", "80.0", "80.0", "80.0", "80.0", "–", "–", "2.5"]


def test_random_rows_that_differ_are_averaged_and_counted_once_each(record_of: Make) -> None:
    other = [[40, 42, 44], *FORGETS[1:]]
    records = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS), record_of("ccl", other, "seed=1")]
    assert cells(summary(records))[0][:5] == ["Random initialisation (mean of 2)", "–", "18.5", "37.0", "35.0"]


def test_names_say_what_the_runs_differ_in_and_no_more(record_of: Make) -> None:
    def names(*records: RunRecord) -> list[str]:
        return [row[0] for row in cells(summary(records))[1:]]

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
    elsewhere = record_of("ccl", FORGETS, folder="other/ccl")
    assert names(ccl, elsewhere) == ["CCL (runs/ccl)", "CCL (other/ccl)"]


def test_the_note_names_the_protocol(record_of: Make) -> None:
    other_seed = record_of("finetuning", FORGETS, "seed=1", class_order="3210")
    note = summary([record_of("ccl", FORGETS), other_seed]).note
    assert "differ" not in note
    assert "Not complete" not in note
    for fact in (
        "dataset digits+capitals+greek;",
        "fingerprint f00d;",
        "steps (T) 3;",
        "backbone convnet;",
        "stem cifar;",
        "epochs per step 30;",
        "batch size 64;",
        "probe logistic regression;",
        "seed 0 / 1;",
        "device cpu;",
        "threads 2;",
        "torch 2.6.0;",
    ):
        assert fact in note


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
def test_mixed_protocols_are_named(record_of: Make, changes: list[str], told: dict[str, str], named: str) -> None:
    note = summary([record_of("finetuning", FORGETS), record_of("ccl", FORGETS, *changes, **told)]).note
    assert note.startswith(f"These runs differ in {named}:")


def test_no_run_is_refused() -> None:
    with pytest.raises(UserError, match="no runs to report on"):
        summary([])


def test_markdown_reads_back_and_names_stay_in_their_cells(record_of: Make) -> None:
    hostile = record_of("a|b\n<script>alert(1)</script>", FORGETS)
    table = summary([hostile])
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    read = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]
    assert read[0] == list(COLUMNS)
    assert read[2] == cells(table)[0]
    assert read[3] == ["a¦b &lt;script&gt;alert(1)&lt;/script&gt;", *cells(table)[1][1:]]
    assert "<script" not in to_markdown(table)


def test_csv_reads_back_with_empty_fields_for_gaps(record_of: Make) -> None:
    table = summary([record_of('a,"b"\nc', AT_ONCE)])
    read = list(csv.reader(io.StringIO(to_csv(table))))
    row = dict(zip(read[0], read[2], strict=True))
    assert row["Strategy"] == 'a,"b"\nc'
    found = [row[name] for name in MEASURES]
    assert found == ["46.000", "92.000", "", "90.000", "", "", "", "7.500"]
    assert (row["All classes (%), seeds"], row["All classes (%), std"]) == ("1", "")


def test_a_small_negative_number_is_zero() -> None:
    assert [text(value) for value in (-0.04, -0.06, None, "x")] == ["0.0", "-0.1", "–", "x"]


def test_the_terminal_shows_all_words_in_80_columns_and_takes_no_markup(record_of: Make) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(to_rich(summary([record_of("[red]x[/red]", FORGETS), record_of("upper_bound", AT_ONCE)])))
    shown = console.export_text()
    for word in ("[red]x[/red]", "initialisation", "Plasticity", "Forgetting", "Transfer", "16.0", "90.0"):
        assert word in shown


def shifted(by: float) -> list[list[float]]:
    return [FORGETS[0], *([value + by for value in row] for row in FORGETS[1:])]


@pytest.fixture
def grid(record_of: Make) -> list[RunRecord]:
    """Three seeds: Simple Rehearsal gains 2 (±0.2) over Finetuning in the halves of all classes, Upper Bound 5."""
    records = []
    for seed, noise in enumerate((0.0, 0.4, -0.4)):
        own = (f"seed={seed}",)
        order = {"class_order": f"order {seed}"}
        records += [
            record_of("finetuning", shifted(10.0 * seed), *own, **order),
            record_of("simple_rehearsal", shifted(10.0 * seed + 4 + noise), *own, **order),
            record_of("upper_bound", [FORGETS[0], None, None, shifted(10.0 * seed + 10)[-1]], *own, **order),
        ]
    return records


def test_seeds_become_means_and_spreads(grid: list[RunRecord]) -> None:
    table = summary(grid)
    assert [row[:3] for row in cells(table)] == [
        ["Random initialisation", "–", "16.0"],
        ["Finetuning", "0–2", "42.0 ± 5.0"],  # 37, 42, 47
        ["Simple Rehearsal", "0–2", "44.0 ± 4.9"],  # 39, 44.2, 48.8
        ["Upper Bound", "0–2", "47.0 ± 5.0"],
    ]
    found = table.rows[1][2]
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((42 - 12.42, 42 + 12.42), abs=0.01)  # 4.303 · 5 ÷ √3
    assert "differ" not in table.note


def test_paired_differences_by_hand(grid: list[RunRecord]) -> None:
    table = differences(make_arms(grid))
    rows = [[text(cell) for cell in row] for row in table.rows]
    assert [row[:2] for row in rows] == [["Simple Rehearsal", "Finetuning"], ["Upper Bound", "Finetuning"]]
    # Differences 2, 2.2, 1.8: std 0.2, t = 2 ÷ (0.2 ÷ √3) = 17.3 with 2 degrees, p = 0.0033; Holm: the larger, ·1
    assert rows[0][2:7] == ["3", "+2.0", "1.5 to 2.5", "0.003", "better"]
    assert rows[0][7:] == ["40 %", "30 to 50 %"]
    assert rows[1][3:] == ["+5.0", "5.0 to 5.0", "< 0.001", "better", "–", "–"]  # its own share is no finding


def test_a_difference_within_the_noise_is_said_in_words(record_of: Make) -> None:
    moves = {0: 1.0, 1: -1.4, 2: 0.6}
    records = [record_of("finetuning", FORGETS, f"seed={seed}") for seed in moves]
    records += [record_of("ccl", shifted(move), f"seed={seed}") for seed, move in moves.items()]
    (row,) = differences(make_arms(records)).rows
    assert row[6] == "not distinguishable"
    assert row[7] is None  # no Upper Bound, no gap


def test_only_equal_seeds_are_paired(record_of: Make) -> None:
    records = [record_of("finetuning", FORGETS, f"seed={seed}") for seed in (0, 1)]
    records += [record_of("ccl", shifted(2.0 * seed), f"seed={seed}") for seed in (1, 2)]
    (row,) = differences(make_arms(records)).rows
    assert (row[2], row[3], row[6]) == ("1", "+1.0", "one seed, no test")
    apart = [record_of("finetuning", FORGETS), record_of("ccl", FORGETS, "seed=1")]
    assert differences(make_arms(apart)).rows == ()


def test_runs_of_one_seed_and_several_orders_are_averaged_and_paired(record_of: Make) -> None:
    records = [
        record_of(strategy, shifted(more + order), f"data.seed={order}", folder=f"{strategy}{order}")
        for strategy, more in (("finetuning", 0.0), ("ccl", 4.0))
        for order in (0, 1, 2)
    ]
    arms = make_arms(records)
    assert [(arm.name, len(arm.records)) for arm in arms] == [("Finetuning", 3), ("CCL", 3)]
    assert summary_of_arms(arms).rows[1][1] == "0 (order 0), 0 (order 1), 0 (order 2)"
    (row,) = differences(arms).rows
    assert (row[2], row[3]) == ("3", "+2.0")  # on all classes half of it


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
    found = [(row[0], row[1]) for row in differences(make_arms(records)).rows]
    assert found == [
        ("CCL, MoCoV2, T = 5", "Finetuning, MoCoV2, T = 5"),
        ("Upper Bound, MoCoV2", "Finetuning, MoCoV2, T = 3"),
        ("Upper Bound, MoCoV2", "Finetuning, MoCoV2, T = 5"),
    ]


def test_a_second_run_of_one_seed_is_no_second_seed(record_of: Make) -> None:
    twice = [record_of("ccl", FORGETS, folder="runs/one"), record_of("ccl", shifted(2.0), folder="runs/two")]
    arms = make_arms(twice)
    assert [arm.name for arm in arms] == ["CCL (runs/one)", "CCL (runs/two)"]


def test_every_run_carries_its_stamp(grid: list[RunRecord]) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(every_run(grid)))))
    assert len(read) == len(grid)
    for row, record in zip(read, grid, strict=True):
        assert row["seed"] == str(record.settings.seed)
        assert row["class order"] == f"order {record.settings.seed}"
        for fact in ("dataset fingerprint", "stem", "epochs per step", "batch size", "probe", "views", "device", "ccl"):
            assert row[fact]


def test_latex_escapes_what_would_break_it(record_of: Make) -> None:
    found = to_latex(summary([record_of("50% & more_{x}\\end", FORGETS)]))
    assert r"50\% \& more\_\{x\}\textbackslash{}end & 37.0 & 74.0" in found
    assert found.count(r"\\") == 3  # one line end for the head and one for each row
    body = found.replace(r"\&", "")
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in rows} == {len(COLUMNS) - 1}


def test_an_estimate_of_one_seed_has_no_plus_minus() -> None:
    assert text(Estimate(37.04, math.nan, math.nan, math.nan, 1)) == "37.0"
    assert text(Estimate(-0.04, 0.26, -1, 1, 3)) == "0.0 ± 0.3"


def test_a_narrow_terminal_leaves_out_spare_columns_and_says_so(grid: list[RunRecord]) -> None:
    from rich.console import Console

    table = summary(grid)
    narrow, wide = (Console(file=io.StringIO(), width=width, record=True) for width in (80, 160))
    narrow.print(to_rich(table, 80))
    shown = " ".join(narrow.export_text().split())
    left_out = "for want of room: Seeds, Mean of steps (%), First step, after it (%), Forward Transfer ↑, Training"
    for word in ("Simple", "Rehearsal", "42.0 ± 5.0", "Forgetting", "Plasticity", "against", left_out):
        assert word in shown
    assert "…" not in shown
    wide.print(to_rich(table, 160))
    assert "Not shown" not in (all_of_it := wide.export_text())
    assert "Training" in all_of_it
    tested = Console(file=io.StringIO(), width=80, record=True)
    tested.print(to_rich(differences(make_arms(grid)), 80))
    assert "…" not in (said := tested.export_text())
    assert max(map(len, said.splitlines())) <= 80
    assert "100 to" not in said
    assert "Finetuning" in said
