"""How a grid treats its children: a quick stand-in for `ccl run` lets every order of events be tried in moments.

The stand-in keeps a run folder's contract: lock, settings, status, exit codes. `cli/test_compare.py` has real runs.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_stand_in import Spy, cells, complete, install_run, told, trace

from ccl.errors import StoppedError, UserError
from ccl.loading import load_settings
from ccl.runs import grid, jobs
from ccl.runs.grid import CellState, run_grid
from ccl.runs.grid_cells import Cell
from ccl.runs.jobs import Job, LocalJobs

PYTHON = sys.executable  # which a fixture replaces

# Takes the lock of a run folder, says so, and does what it is told when its input ends.
HOLDER = r"""
import fcntl, os, sys
folder, at_end = sys.argv[1:]
lock = open(os.path.join(folder, ".lock"), "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
if at_end == "complete":
    open(os.path.join(folder, "status.json"), "w").write('{"state": "complete"}')
"""


@pytest.fixture(autouse=True)
def quick_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Children end after 0.2 seconds, or as told."""

    def take(seconds: float) -> None:
        monkeypatch.setattr(sys, "executable", str(install_run(tmp_path, PYTHON, seconds)))

    monkeypatch.setattr(LocalJobs, "seconds_between_looks", 0.02)
    take(0.2)
    return take


@pytest.fixture
def hold() -> Iterator[Callable[[Path, str], subprocess.Popen[str]]]:
    """Another process that has a run folder; ends with its input."""
    started = []

    def start(folder: Path, at_end: str) -> subprocess.Popen[str]:
        folder.mkdir(parents=True, exist_ok=True)
        command = [PYTHON, "-S", "-c", HOLDER, str(folder), at_end]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "held\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.communicate()


def test_at_most_so_many_at_once_in_the_order_of_the_cells(tmp_path: Path) -> None:
    made, spy = cells(5), Spy()
    outcome = run_grid(made, tmp_path / "grid", 2, spy)
    assert [record.folder.name for record in outcome.records] == [cell.name for cell in made]
    assert outcome.failures == []
    alive = [{"begin": 1, "end": -1}[line[0]] for line in trace(tmp_path / "grid")]
    assert max(itertools.accumulate(alive)) == 2
    at_once = [list(states.values()).count("running") for states in spy.seen]
    assert max(at_once) == 2
    started = told(tmp_path / "grid", "begin")
    assert set(started[:2]) == {cell.name for cell in made[:2]}
    assert started[4] == made[4].name
    assert spy.seen[0][made[4].name] == "waiting"
    # Each in a session of its own: a Ctrl-C in the terminal reaches it through its parent only.
    assert all(line[4] == line[2] for line in trace(tmp_path / "grid"))
    assert set(spy.seen[-1].values()) == {"complete"}


def test_complete_cells_are_not_started_again(tmp_path: Path) -> None:
    made, folder = cells(3), tmp_path / "grid"
    complete(made[1], folder / made[1].name)
    run_grid(made, folder, 3, Spy())
    assert sorted(told(folder, "begin")) == [made[0].name, made[2].name]
    before = len(trace(folder))
    outcome = run_grid(made, folder, 3, Spy())
    assert len(trace(folder)) == before
    assert len(outcome.records) == 3


def test_cores_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "num_cores", lambda: 8)

    def threads(num_cells: int, jobs: int, folder: str, *assignments: str) -> set[tuple[str, int | None]]:
        run_grid(cells(num_cells, *assignments), tmp_path / folder, jobs, Spy())
        settings = [load_settings(str(path)).threads for path in (tmp_path / folder / "cells").iterdir()]
        return {(line[3], settings[0]) for line in trace(tmp_path / folder)}

    assert threads(3, 3, "a") == {("2", 2)}
    assert threads(2, 20, "b") == {("4", 4)}  # more jobs than cells take nothing from the cells
    assert threads(9, 20, "c") == {("1", 1)}
    assert threads(1, 1, "d", "threads=3") == {("3", 3)}


def test_a_cell_that_resumes_keeps_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "num_cores", lambda: 8)
    made, folder = cells(1), tmp_path / "grid"
    began_with = made[0].settings.model_copy(update={"threads": 5})
    complete(Cell(made[0].name, "", 0, began_with), folder / made[0].name)
    (folder / made[0].name / "status.json").write_text('{"state": "stopped"}')
    run_grid(made, folder, 1, Spy())
    assert [line[3] for line in trace(folder)] == ["5", "5"]


def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    made, folder = cells(3), tmp_path / "grid"

    def fail_the_first(states: Mapping[str, CellState]) -> None:
        if states[made[0].name].state == "failed":
            (folder / "fail").unlink(missing_ok=True)

    folder.mkdir()
    (folder / "fail").touch()
    spy = Spy(fail_the_first)
    outcome = run_grid(made, folder, 1, spy)
    assert [record.folder.name for record in outcome.records] == [made[1].name, made[2].name]
    [failure] = outcome.failures
    assert failure.cell == made[0]
    assert failure.reason.splitlines() == ["exit code 1", "some words", "ccl: no space left"]
    assert "some words" in failure.job.log.read_text()
    assert failure.job.log == folder / "logs" / f"{made[0].name}.txt"
    assert spy.seen[-1][made[0].name] == "failed"
    again = run_grid(made, folder, 1, Spy())
    assert len(again.records) == 3
    assert again.failures == []


def test_a_killed_child_is_a_failure_with_its_signal(tmp_path: Path) -> None:
    made, folder = cells(2), tmp_path / "grid"

    def kill(states: Mapping[str, CellState]) -> None:
        for line in trace(folder):
            if line[:2] == ["begin", made[0].name] and states[made[0].name].state == "running":
                os.kill(int(line[2]), signal.SIGKILL)

    log = folder / "logs" / f"{made[0].name}.txt"
    log.parent.mkdir(parents=True)
    log.write_text("ccl: the words of an earlier day\n")
    outcome = run_grid(made, folder, 1, Spy(kill))
    assert [failure.reason for failure in outcome.failures] == ["ended by signal 9 (Killed)"]
    assert len(outcome.records) == 1


def test_all_conflicts_are_told_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    for cell in cells(2, "temperature=0.3"):
        complete(cell, folder / cell.name)
    with pytest.raises(UserError) as caught:
        run_grid(cells(3), folder, 2, Spy())
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all("temperature: 0.3 -> 0.1" in line for line in lines)
    assert sorted(path.name for path in folder.iterdir()) == [cell.name for cell in cells(2)]


def test_a_complete_cell_with_other_epochs_is_a_conflict_and_one_under_way_is_none(tmp_path: Path) -> None:
    [cell] = cells(1, "epochs=3")
    complete(cell, tmp_path / cell.name)
    with pytest.raises(UserError, match="epochs: 3 -> 4"):
        run_grid(cells(1, "epochs=4"), tmp_path, 1, Spy())
    (tmp_path / cell.name / "status.json").write_text('{"state": "stopped"}')
    assert len(run_grid(cells(1, "epochs=4"), tmp_path, 1, Spy()).records) == 1


def test_a_folder_that_can_t_be_a_grid_s_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, message in (("file", "is a file"), ("file/below", "can't be used")):
        with pytest.raises(UserError, match=message):
            run_grid(cells(1), tmp_path / folder, 1, Spy())
    complete(cells(1)[0], tmp_path / "run")
    with pytest.raises(UserError, match="holds a single run"):
        run_grid(cells(1), tmp_path / "run", 1, Spy())


Hold = Callable[[Path, str], "subprocess.Popen[str]"]


@pytest.mark.parametrize("at_end", ["complete", "unfinished"])
def test_a_cell_that_another_process_has_is_watched_and_taken_up(tmp_path: Path, hold: Hold, at_end: str) -> None:
    made, folder = cells(2), tmp_path / "grid"
    mine, other = made[1].name, made[0].name
    complete(made[0], folder / other)
    (folder / other / "status.json").write_text('{"state": "running"}')
    holder = hold(folder / other, at_end)

    def let_go_when_the_rest_is_done(states: Mapping[str, CellState]) -> None:
        if states[mine].state == "complete" and not holder.stdin.closed:  # type: ignore[union-attr]
            assert states[other].state == "elsewhere"
            holder.communicate()

    outcome = run_grid(made, folder, 1, Spy(let_go_when_the_rest_is_done))
    assert [record.folder.name for record in outcome.records] == [other, mine]
    assert told(folder, "begin") == ([mine] if at_end == "complete" else [mine, other])
    assert told(folder, "refused") == []


def test_a_lost_race_for_a_folder_is_no_failure(tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    made, folder = cells(1), tmp_path / "grid"
    holder = hold(folder / made[0].name, "unfinished")
    looks = iter([False])  # the other takes the folder between the first look and the child's own
    really = jobs.is_held
    monkeypatch.setattr(jobs, "is_held", lambda path: next(looks, None) is None and really(path))

    def let_go(states: Mapping[str, CellState]) -> None:
        if states[made[0].name].state == "elsewhere" and not holder.stdin.closed:  # type: ignore[union-attr]
            holder.communicate()

    outcome = run_grid(made, folder, 1, Spy(let_go))
    assert [line[0] for line in trace(folder)] == ["refused", "begin", "end"]
    assert len(outcome.records) == 1


def test_two_parents_share_the_work(tmp_path: Path) -> None:
    made, folder = cells(6), tmp_path / "grid"
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: run_grid(made, folder, 1, Spy()), range(2)))
    assert [len(outcome.records) for outcome in outcomes] == [6, 6]
    assert sorted(told(folder, "begin")) == [cell.name for cell in made]
    alive = [{"begin": 1, "end": -1, "refused": 0}[line[0]] for line in trace(folder)]
    assert max(itertools.accumulate(alive)) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_waited_for(
    tmp_path: Path, quick_children: Callable[[float], None], number: signal.Signals
) -> None:
    quick_children(30)
    made, folder = cells(3), tmp_path / "grid"
    sent: list[float] = []

    def stop(states: Mapping[str, CellState]) -> None:
        if len(told(folder, "begin")) == 2 and not sent:
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    spy = Spy(stop)
    with pytest.raises(StoppedError) as caught:
        run_grid(made, folder, 2, spy)
    assert caught.value.exit_code == 128 + number
    assert time.monotonic() - sent[0] < 10
    assert sorted(told(folder, "stop")) == [made[0].name, made[1].name]
    assert told(folder, "begin").count(made[2].name) == 0
    assert spy.notes == ["closed", "runs under way save their state and end: 2"]
    statuses = [json.loads((folder / cell.name / "status.json").read_text())["state"] for cell in made[:2]]
    assert statuses == ["stopped", "stopped"]


@pytest.mark.parametrize("is_deaf", [False, True])
def test_children_end_when_the_parent_fails(
    tmp_path: Path, quick_children: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, is_deaf: bool
) -> None:
    quick_children(30)
    made, folder = cells(1), tmp_path / "grid"

    def fail(*_: object) -> None:
        if told(folder, "begin"):
            raise BrokenPipeError("nobody reads")

    spy = Spy(fail)
    if is_deaf:
        monkeypatch.setattr(spy, "close", fail)
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        run_grid(made, folder, 1, spy)
    deadline = time.monotonic() + 5
    while not told(folder, "stop") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert told(folder, "stop") == [made[0].name]


def test_data_is_fetched_once_and_only_for_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, str | None, bool]] = []
    monkeypatch.setattr(grid, "load_dataset", lambda name, root, download: fetched.append((name, root, download)))
    asked = ("dataset=cifar10,digits", "data.root=/data", "data.download=true")
    run_grid(cells(3, *asked), tmp_path / "grid", 3, Spy())
    assert fetched == [("cifar10", "/data", True)]
    run_grid(cells(3, *asked), tmp_path / "grid", 3, Spy())
    run_grid(cells(1, "dataset=cifar10,digits"), tmp_path / "other", 3, Spy())
    assert len(fetched) == 1


def test_the_share_done_is_read_from_the_last_epoch(tmp_path: Path) -> None:
    of_folder = Job("cell", tmp_path / "cell.yaml", tmp_path, tmp_path / "log.txt")
    assert of_folder.share_done(10) == 0.0
    (tmp_path / "protocol.json").write_text('{"all_at_once": false, "steps": [{}, {}, {}, {}]}')
    assert of_folder.share_done(10) == 0.0
    rows = [
        {"kind": "epoch", "step": 3, "epoch": 3},
        {"kind": "epoch", "step": 3, "epoch": 4},
        {"kind": "probe", "per_step": [1.5] * 2000},
    ]
    # A row of another kind, and one that is half written, don't hide the last epoch.
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, rows), '{"kind": "epoch", "st']))
    assert of_folder.share_done(10) == pytest.approx(24 / 40)
    (tmp_path / "protocol.json").write_text('{"all_at_once": true, "steps": [{}, {}, {}, {}]}')
    (tmp_path / "metrics.jsonl").write_text('{"kind": "epoch", "step": 1, "epoch": 4}\n')
    assert of_folder.share_done(10) == pytest.approx(4 / 10)
