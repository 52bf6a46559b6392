"""What is shown of a grid: the table, the lines, and the time left."""

import io

import pytest
from rich.console import Console

from ccl.cli.grid_display import LiveGrid, Pace, PlainGrid, entry, make_grid_display, summary
from ccl.runs.grid import CellState
from ccl.runs.grid_cells import Cell, Grid, make_cells

CELLS = make_cells(Grid("demo", ["finetuning", "ccl"], [0, 1]))
WAITING = CellState("waiting", 0.0)


def states(*found: CellState) -> dict[str, CellState]:
    return {cell.name: state for cell, state in zip(CELLS, found, strict=True)}


def console(is_terminal: bool = False, height: int = 40) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=is_terminal, width=100, height=height, color_system=None), file


def test_the_time_left_counts_only_what_was_done_since_the_first_look() -> None:
    pace = Pace()
    half = CellState("waiting", 0.5)  # of an earlier day
    assert pace.seconds_left(states(CellState("complete", 1.0), half, WAITING, WAITING), 100.0) is None
    # In 60 seconds half a run was done; two are left.
    now = states(CellState("complete", 1.0), CellState("running", 0.75), CellState("running", 0.25), WAITING)
    assert pace.seconds_left(now, 160.0) == pytest.approx(240.0)
    # A failed run is neither done nor left: a quarter in 60 seconds, 1.25 left.
    now = states(CellState("complete", 1.0), CellState("running", 0.75), CellState("failed", 0.25), WAITING)
    assert pace.seconds_left(now, 160.0) == pytest.approx(300.0)


def test_the_summary_line() -> None:
    found = states(CellState("complete", 1.0, 50.0), CellState("running", 0.5), WAITING, WAITING)
    assert summary(found, 860.0) == "1 of 4 done, 1 running, about 14:20 left"
    assert summary(found, 4000.0) == "1 of 4 done, 1 running, about 1:06:40 left"
    assert summary(found, None) == "1 of 4 done, 1 running"
    found = states(CellState("complete", 1.0), CellState("elsewhere", 0.5), CellState("failed", 0.0), WAITING)
    assert summary(found, 5.0) == "1 of 4 done, 0 running, 1 elsewhere, 1 failed, about 00:05 left"
    found = states(*[CellState("complete", 1.0)] * 3, CellState("failed", 0.0))
    assert summary(found, 0.0) == "3 of 4 done, 0 running, 1 failed"


def test_plain_lines_tell_each_change_once() -> None:
    output, file = console()
    display = PlainGrid(output, CELLS)
    complete = CellState("complete", 1.0, 52.14)
    for found in (
        states(complete, WAITING, WAITING, WAITING),
        states(complete, CellState("running", 0.0), CellState("elsewhere", 0.3), WAITING),
        states(complete, CellState("running", 0.4), CellState("elsewhere", 0.4), WAITING),
        states(complete, complete, WAITING, CellState("running", 0.43)),
        states(complete, complete, CellState("complete", 1.0), CellState("failed", 0.43)),
    ):
        display.show(found)
    assert file.getvalue().splitlines() == [
        "· Finetuning, seed 0: complete, 52.1 %",
        "· CCL, seed 0: running",
        "· Finetuning, seed 1: elsewhere 30 %",
        "· CCL, seed 0: complete, 52.1 %",
        "· CCL, seed 1: running 43 %",
        "· Finetuning, seed 1: complete",
        "· CCL, seed 1: failed 43 %",
    ]


def test_queued_runs_are_told_apart_from_running_ones() -> None:
    output, file = console()
    display, queued = PlainGrid(output, CELLS), CellState("queued", 0.0)
    found = states(queued, CellState("running", 0.2), WAITING, WAITING)
    display.show(found)
    display.show(states(CellState("running", 0.0), CellState("queued", 0.4), WAITING, WAITING))
    assert file.getvalue().splitlines() == [
        "· Finetuning, seed 0: queued",
        "· CCL, seed 0: running 20 %",
        "· Finetuning, seed 0: running",
        "· CCL, seed 0: queued 40 %",
    ]
    assert summary(found, None) == "0 of 4 done, 1 running, 1 queued"
    assert entry(queued) == "queued"


def test_plain_summaries_keep_their_distance() -> None:
    now, later = states(*[WAITING] * 4), states(CellState("running", 0.5), *[WAITING] * 3)
    for every, expected in ((30.0, 0), (0.0, 2)):
        output, file = console()
        display = PlainGrid(output, CELLS, every)
        display.show(now)
        display.show(later)
        assert file.getvalue().count("0 of 4 done") == expected


def test_a_terminal_shows_a_table_of_rows_and_seeds() -> None:
    output, file = console(is_terminal=True)
    display = LiveGrid(output, CELLS)
    found = states(CellState("complete", 1.0, 52.14), CellState("running", 0.43), CellState("failed", 0.1), WAITING)
    output.print(display.table(found))
    lines = [line.split() for line in file.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["Run", "seed", "0", "seed", "1"]
    assert lines[2:] == [["Finetuning", "52.1", "%", "failed", "10", "%"], ["CCL", "running", "43", "%", "waiting"]]
    display.show(states(CellState("elsewhere", 0.43), *[CellState("complete", 1.0)] * 3))
    display.close()
    assert "elsewhere 43 %" in file.getvalue()
    assert "3 of 4 done, 0 running, 1 elsewhere" in file.getvalue()
    display.note("said [after] the end")
    assert "· said [after] the end" in file.getvalue()


def test_the_display_suits_the_place() -> None:
    made: list[Cell] = CELLS
    assert isinstance(make_grid_display(console(is_terminal=True)[0], made), LiveGrid)
    assert isinstance(make_grid_display(console()[0], made), PlainGrid)
