"""The summary: numbers computed by hand, gaps where nothing was measured, and texts that read back."""

import csv
import io
from collections.abc import Callable

import pytest

from ccl.errors import UserError
from ccl.report import RunRecord
from ccl.report.tables import COLUMNS, Table, summary, text, to_csv, to_markdown, to_rich

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
#   all classes: (60+72+90)/3/2 = 37; mean 74; Forgetting ((80-60)+(84-72))/2 = 16; FT ((40-32)+(50-34))/2 = 12
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]


def cells(table: Table) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in table.rows]


def test_every_cell_is_the_number_computed_by_hand(record_of: Make) -> None:
    table = summary([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])
    assert table.columns == COLUMNS
    assert cells(table) == [
        ["Random initialisation", "16.0", "32.0", "30.0", "30.0", "–", "–", "–"],
        ["Finetuning", "37.0", "74.0", "80.0", "60.0", "16.0", "12.0", "7.5"],
        ["Upper Bound", "46.0", "92.0", "–", "90.0", "–", "–", "2.5"],
    ]


def test_an_unfinished_run_has_gaps_where_the_end_is_not_known(record_of: Make) -> None:
    table = summary([record_of("ccl", [*FORGETS[:3], None], state="stopped"), record_of("finetuning", None)])
    assert cells(table)[1:] == [
        ["CCL", "–", "–", "80.0", "–", "–", "–", "7.5"],
        ["Finetuning", "–", "–", "–", "–", "–", "–", "7.5"],
    ]
    assert "Not complete: CCL (stopped)." in table.note


def test_a_run_probed_only_at_its_end_has_no_forgetting_rather_than_zero(record_of: Make) -> None:
    row = cells(summary([record_of("ccl", AT_ONCE)]))[1]
    assert row[1:7] == ["46.0", "92.0", "–", "90.0", "–", "–"]


def test_without_a_random_row_there_is_no_forward_transfer(record_of: Make) -> None:
    table = cells(summary([record_of("ccl", [None, *FORGETS[1:]])]))
    assert table[0] == ["Random initialisation", *["–"] * 7]
    assert table[1][5:7] == ["16.0", "–"]


def test_a_stream_of_one_step_has_neither_forgetting_nor_transfer(record_of: Make) -> None:
    table = cells(summary([record_of("ccl", [[30], [80]], names=("digits",))]))
    assert table[1] == ["CCL", "40.0", "80.0", "80.0", "80.0", "–", "–", "2.5"]


def test_random_rows_that_differ_are_averaged_and_counted_once_each(record_of: Make) -> None:
    other = [[40, 42, 44], *FORGETS[1:]]
    records = [record_of("ccl", FORGETS), record_of("finetuning", FORGETS), record_of("ccl", other, "seed=1")]
    assert cells(summary(records))[0][:4] == ["Random initialisation (mean of 2)", "18.5", "37.0", "35.0"]


def test_names_say_what_the_runs_differ_in_and_no_more(record_of: Make) -> None:
    def names(*records: RunRecord) -> list[str]:
        return [row[0] for row in cells(summary(records))[1:]]

    ccl, plain = record_of("ccl", FORGETS), record_of("finetuning", FORGETS)
    assert names(ccl, plain) == ["CCL", "Finetuning"]
    assert names(ccl, record_of("ccl", FORGETS, "seed=3")) == ["CCL, seed 0", "CCL, seed 3"]
    assert names(ccl, record_of("ccl", FORGETS, "objective=simclr")) == ["CCL, moco_v2", "CCL, simclr"]
    again = record_of("ccl", FORGETS, folder="runs/again")
    assert names(ccl, again, plain) == ["CCL (ccl)", "CCL (again)", "Finetuning"]
    elsewhere = record_of("ccl", FORGETS, folder="other/ccl")
    assert names(ccl, elsewhere) == ["CCL (runs/ccl)", "CCL (other/ccl)"]


def test_the_note_names_the_protocol(record_of: Make) -> None:
    note = summary([record_of("ccl", FORGETS), record_of("finetuning", FORGETS, "seed=1")]).note
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
        ([], {"backbone": "resnet18"}, "backbone"),
        ([], {"stem": "imagenet"}, "stem"),
        (["epochs=31"], {}, "epochs per step"),
        (["batch_size=32"], {}, "batch size"),
        (["epochs=31"], {"stem": "imagenet"}, "stem, epochs per step"),
    ],
)
def test_mixed_protocols_are_named(record_of: Make, changes: list[str], told: dict[str, str], named: str) -> None:
    note = summary([record_of("finetuning", FORGETS), record_of("ccl", FORGETS, *changes, **told)]).note
    assert note.startswith(f"These runs differ in {named}:")


def test_no_run_is_refused() -> None:
    with pytest.raises(UserError, match="no run"):
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
    assert read[0] == list(COLUMNS)
    assert read[2] == ['a,"b"\nc', "46.0", "92.0", "", "90.0", "", "", "7.5"]


def test_a_small_negative_number_is_zero() -> None:
    assert [text(value) for value in (-0.04, -0.06, None, "x")] == ["0.0", "-0.1", "–", "x"]


def test_the_terminal_shows_all_words_in_80_columns_and_takes_no_markup(record_of: Make) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(to_rich(summary([record_of("[red]x[/red]", FORGETS), record_of("upper_bound", AT_ONCE)])))
    shown = console.export_text()
    for word in ("[red]x[/red]", "initialisation", "Forgetting", "Transfer", "Training", "16.0", "92.0"):
        assert word in shown
