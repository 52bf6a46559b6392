"""Grids as Slurm jobs, with stand-ins for Slurm's commands and for `ccl run`; the job's own script is the real one."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from run_stand_in import Spy, cells, install_run, told, trace
from slurm_stand_in import SlurmStandIn

from ccl.cli.options import sbatch_options
from ccl.errors import StoppedError, UserError
from ccl.runs import slurm
from ccl.runs.grid import CellState, cell_job, run_grid
from ccl.runs.slurm import JobQueue, SlurmError, SlurmJobs

PYTHON = sys.executable  # which a fixture replaces


@pytest.fixture
def quick_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Runs end after no time, or as told."""

    def take(seconds: float) -> None:
        monkeypatch.setattr(sys, "executable", str(install_run(tmp_path, PYTHON, seconds)))

    take(0)
    return take


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_runs: Callable[[float], None]
) -> Iterator[SlurmStandIn]:
    monkeypatch.setattr(sys, "executable", PYTHON)
    made = SlurmStandIn(tmp_path / "bin")
    quick_runs(0)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0.1)
    monkeypatch.setattr(slurm, "PATIENCE", 0.5)
    monkeypatch.setattr(SlurmJobs, "seconds_between_looks", 0.1)
    monkeypatch.setattr(slurm, "SECONDS_BEFORE_RETRY", 0.1)
    yield made
    for job in made.jobs():
        if not made.is_over(job):
            os.killpg(int((made.folder / f"job-{job}" / "pid").read_text()), signal.SIGKILL)


def test_each_run_is_a_job_and_its_files_are_where_a_grid_has_them(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder, spy = cells(3), tmp_path / "ein Gitter ü", Spy()
    launcher = SlurmJobs(folder, ["--partition=gpu", "--time=5"])
    outcome = run_grid(made, folder, None, spy, launcher)
    assert [record.folder.name for record in outcome.records] == [cell.name for cell in made]
    assert outcome.failures == []
    assert len(cluster.submissions()) == 3
    for words, cell in zip(cluster.submissions(), made, strict=True):
        assert words[:5] == ["--parsable", "--requeue", "--signal=B:USR1@120", "--partition=gpu", "--time=5"]
        assert words[-1] == cell.name
        assert not [word for word in words if word.startswith("--array")]
    assert (folder / "logs" / f"{made[0].name}.txt").read_text().startswith("Slurm job 1 on n1, start 1\n")
    assert {line[3] for line in trace(folder)} == {"3"}  # threads: the cores of the job
    assert "queued" in spy.seen[0].values()


def test_no_more_jobs_at_once_than_asked_for(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder = cells(4), tmp_path / "grid"
    at_once = []

    def count(states: Mapping[str, CellState]) -> None:
        at_once.append(sum(state.state in ("queued", "running") for state in states.values()))

    assert len(run_grid(made, folder, 2, Spy(count), SlurmJobs(folder, [])).records) == 4
    assert max(at_once) == 2


def test_many_runs_are_arrays(tmp_path: Path, cluster: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ARRAY_FROM", 5)
    made, folder = cells(5), tmp_path / "grid"
    assert len(run_grid(made, folder, None, Spy(), SlurmJobs(folder, [])).records) == 5
    arrays = [[word for word in words if word.startswith("--array")] for words in cluster.submissions()]
    assert arrays == [["--array=0-4"]]
    assert sorted(told(folder, "begin")) == sorted(cell.name for cell in made)
    assert cluster.jobs() == ["1_0", "1_1", "1_2", "1_3", "1_4"]


def test_more_than_an_array_may_have_is_refused_before_anything_is_made(
    tmp_path: Path, cluster: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ARRAY_FROM", 4)
    cluster.mark("array", "5")  # one above the last index
    made, folder = cells(5), tmp_path / "grid"
    with pytest.raises(UserError, match="5 runs are more than an array of it may have; give --jobs 4, without"):
        run_grid(made, folder, None, Spy(), SlurmJobs(folder, []))
    assert not folder.exists()
    assert len(run_grid(made, folder, 4, Spy(), SlurmJobs(folder, [])).records) == 5


def test_a_failed_run_shows_the_end_of_its_log_and_a_cancelled_one_says_so(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None]
) -> None:
    quick_runs(30)
    made, folder = cells(3), tmp_path / "grid"
    folder.mkdir()
    (folder / made[0].name).mkdir()
    (folder / made[0].name / "thesis.txt").touch()

    def cancel(states: Mapping[str, CellState]) -> None:
        if len(told(folder, "begin")) == 3:
            slurm.call("scancel", "1")
            os.kill(int(trace(folder)[[line[1] for line in trace(folder)].index(made[1].name)][2]), signal.SIGKILL)
            (cluster.folder / "job-3" / "forgotten").touch()
            os.killpg(int((cluster.folder / "job-3" / "pid").read_text()), signal.SIGKILL)
            spy.act = lambda states: None

    spy = Spy(cancel)
    outcome = run_grid(made, folder, None, spy, SlurmJobs(folder, []))
    reasons = {failure.cell.name: failure.reason.splitlines() for failure in outcome.failures}
    gone = "Slurm job {} has ended, and its run is not complete"
    assert reasons[made[0].name] == ["exit code 1", "Slurm job 1 on n1, start 1", gone.format(1)]
    assert [reasons[cell.name][-1] for cell in made[1:]] == [gone.format(2), gone.format(3)]


def test_a_run_that_slurm_has_forgotten_is_what_its_folder_says(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None]
) -> None:
    """First held by a living process, then complete."""
    quick_runs(1.5)
    [cell], folder = cells(1), tmp_path / "grid"

    def forget(states: Mapping[str, CellState]) -> None:
        if told(folder, "begin"):
            (cluster.folder / "job-1" / "forgotten").touch()

    outcome = run_grid([cell], folder, None, Spy(forget), SlurmJobs(folder, []))
    assert [record.folder.name for record in outcome.records] == [cell.name]


def test_a_signal_before_the_time_is_up_saves_and_requeues(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None]
) -> None:
    quick_runs(30)
    [cell], folder = cells(1), tmp_path / "grid"

    def time_is_up(states: Mapping[str, CellState]) -> None:
        if told(folder, "begin") and not told(folder, "stop"):
            cluster.signal("1", signal.SIGUSR1)

    outcome = run_grid([cell], folder, None, Spy(time_is_up), SlurmJobs(folder, []))
    assert len(outcome.records) == 1
    assert cluster.calls("scontrol") == [["requeue", "1"]]
    assert [line[0] for line in trace(folder)] == ["begin", "stop", "begin", "end"]
    assert {line[3] for line in trace(folder)} == {"3"}
    assert "Slurm job 1 on n1, start 2\n" in (folder / "logs" / f"{cell.name}.txt").read_text()


def test_a_time_too_short_to_learn_anything_does_not_requeue_for_ever(
    tmp_path: Path, cluster: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = tmp_path / "never"
    begun = tmp_path / "begun"  # made by the run itself, so that its job has set its traps
    never.write_text(f"#!/bin/bash\ntouch '{begun}'\nexec sleep 30\n")
    never.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never))
    [cell], folder = cells(1), tmp_path / "grid"

    def time_is_up(states: Mapping[str, CellState]) -> None:
        if begun.exists() and cluster.is_running("1"):
            cluster.signal("1", signal.SIGUSR1)

    outcome = run_grid([cell], folder, None, Spy(time_is_up), SlurmJobs(folder, []))
    assert "before anything new was saved; give it more" in outcome.failures[0].reason
    assert cluster.calls("scontrol") == []


@pytest.mark.parametrize("is_pending", [False, True])
def test_ctrl_c_leaves_no_job(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None], is_pending: bool
) -> None:
    quick_runs(30)
    made, folder = cells(3), tmp_path / "grid"
    if is_pending:
        cluster.mark("hold")

    def stop(states: Mapping[str, CellState]) -> None:
        if is_pending or len(told(folder, "begin")) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedError):
        run_grid(made, folder, None, Spy(stop), SlurmJobs(folder, []))
    assert cluster.jobs() == ["1", "2", "3"]
    assert all(cluster.is_over(job) for job in cluster.jobs())
    # Slurm signals every process of a job, and its script passes its own signal on: a run may hear both, which is one.
    assert len(set(told(folder, "stop"))) == (0 if is_pending else 3)


@pytest.mark.parametrize("num_cells", [3, 6])
def test_detached_jobs_are_found_again_and_not_submitted_twice(
    tmp_path: Path, cluster: SlurmStandIn, monkeypatch: pytest.MonkeyPatch, num_cells: int
) -> None:
    monkeypatch.setattr(slurm, "ARRAY_FROM", 5)
    made, folder = cells(num_cells), tmp_path / "grid"
    cluster.mark("hold")
    outcome = run_grid(made, folder, None, Spy(), SlurmJobs(folder, [], is_detached=True))
    assert (outcome.num_under_way, outcome.num_waiting, outcome.records) == (num_cells, 0, [])
    num_submissions = len(cluster.submissions())
    assert num_submissions == (3 if num_cells == 3 else 1)
    again = run_grid(made, folder, None, Spy(), SlurmJobs(folder, [], is_detached=True))
    assert again.num_under_way == num_cells
    followed = run_grid(made, folder, None, Spy(lambda states: cluster.unmark("hold")), SlurmJobs(folder, []))
    assert [record.folder.name for record in followed.records] == [cell.name for cell in made]
    assert len(cluster.submissions()) == num_submissions
    assert len(told(folder, "begin")) == num_cells


def test_detached_with_fewer_at_once_is_an_array_with_a_limit(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder = cells(5), tmp_path / "grid"
    run_grid(made, folder, None, Spy(), SlurmJobs(folder, [], is_detached=True, at_once=2))
    [words] = cluster.submissions()
    assert "--array=0-4%2" in words


def test_a_submission_whose_answer_was_lost_is_found_by_its_name(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder = cells(2), tmp_path / "grid"
    cluster.mark("cut_off")
    assert len(run_grid(made, folder, None, Spy(), SlurmJobs(folder, [])).records) == 2
    assert len(cluster.submissions()) == 2


def test_another_command_on_the_folder_is_noticed_before_submitting(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder = cells(2), tmp_path / "grid"
    for name in ("cells", "logs"):
        (folder / name).mkdir(parents=True)
    cluster.mark("hold")
    first, second = SlurmJobs(folder, []), SlurmJobs(folder, [])
    jobs = [cell_job(folder, cell.name) for cell in made]
    for launcher in (first, second):
        launcher.open(print, 2)
        assert launcher.under_way(jobs) == {}
    assert [name for name, _ in first.start(jobs[:1])] == [made[0].name]
    assert [name for name, _ in second.start(jobs)] == [cell.name for cell in made]
    assert len(cluster.submissions()) == 2
    assert len(list(first.start(jobs[1:]))) == 1
    assert len(cluster.submissions()) == 2


def test_a_job_of_another_name_with_the_same_id_is_a_stranger(tmp_path: Path, cluster: SlurmStandIn) -> None:
    [cell], folder = cells(1), tmp_path / "grid"
    cluster.mark("hold")
    run_grid([cell], folder, None, Spy(), SlurmJobs(folder, [], is_detached=True))
    (cluster.folder / "job-1" / "name").write_text("of another day")
    launcher = SlurmJobs(folder, [])
    launcher.open(print, 1)
    assert launcher.under_way([cell_job(folder, cell.name)]) == {}


@pytest.mark.parametrize("content", ["[]", "{", '{"cells": 3}', '{"cells": []}', "[" * 100_000])
def test_a_damaged_file_of_a_job_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    folder = tmp_path / "grid"
    (folder / "slurm").mkdir(parents=True)
    (folder / "slurm" / "ccl-a-0.json").write_text(content)
    monkeypatch.setattr(JobQueue, "names", lambda self: {"17": "ccl-a-0"})
    launcher = SlurmJobs(folder, [])
    launcher._queue = JobQueue(print)
    with pytest.raises(UserError, match=r"ccl-a-0\.json can't be read .*; scancel 17, delete it") as caught:
        launcher.under_way([cell_job(folder, cells(1)[0].name)])
    assert "\n" not in str(caught.value)


def test_a_full_queue_is_reported_once_and_waited_for(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None]
) -> None:
    quick_runs(0.3)
    made, folder, spy = cells(5), tmp_path / "grid", Spy()
    cluster.mark("limit", "2")
    assert len(run_grid(made, folder, None, spy, SlurmJobs(folder, [])).records) == 5
    words = "sbatch: Batch job submission failed: Resource temporarily unavailable"
    notes = [note for note in spy.notes if "takes no more" in note]
    assert notes[0] == f"Slurm takes no more jobs for now ({words}); tried again until it does"
    assert len(notes) <= 3
    assert len(list((folder / "slurm").glob("*.json"))) == 5


def test_what_a_full_queue_did_not_take_is_counted_when_detached(tmp_path: Path, cluster: SlurmStandIn) -> None:
    made, folder, spy = cells(3), tmp_path / "grid", Spy()
    cluster.mark("limit", "2")
    cluster.mark("hold")
    outcome = run_grid(made, folder, None, spy, SlurmJobs(folder, [], is_detached=True))
    assert (outcome.num_under_way, outcome.num_waiting) == (2, 1)
    assert "the same command submits the rest" in spy.notes[0]


def test_refused_options_are_one_line_before_anything_is_made(tmp_path: Path, cluster: SlurmStandIn) -> None:
    cluster.mark("refuse", "invalid partition specified: gpuu\nsbatch: error: Invalid partition name specified")
    with pytest.raises(UserError) as caught:
        run_grid(cells(2), tmp_path / "grid", None, Spy(), SlurmJobs(tmp_path / "grid", ["--partition=gpuu"]))
    expected = "--on slurm: sbatch: invalid partition specified: gpuu; Invalid partition name specified"
    assert str(caught.value) == expected
    assert not (tmp_path / "grid").exists()
    assert cluster.jobs() == []


@pytest.mark.parametrize("is_back", [True, False])  # the controller may be gone for good
def test_a_controller_that_does_not_answer_loses_no_job(
    tmp_path: Path, cluster: SlurmStandIn, quick_runs: Callable[[float], None], is_back: bool
) -> None:
    quick_runs(0.3)
    made, folder = cells(1), tmp_path / "grid"

    def fail(states: Mapping[str, CellState]) -> None:
        if told(folder, "end") and is_back:
            cluster.unmark("down")
        elif told(folder, "begin"):
            cluster.mark("down", "Unable to contact slurm controller (connect failure)")

    spy = Spy(fail)
    assert len(run_grid(made, folder, None, spy, SlurmJobs(folder, [])).records) == 1
    expected = "squeue: Unable to contact slurm controller (connect failure); asked again until Slurm answers"
    assert [note for note in spy.notes if note != "closed"] == [expected] or not is_back


def test_one_question_a_second_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], []
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm, "call", lambda *words: asked.append(words[0]) or "7|RUNNING|x\n17_3|PENDING|a|b\n")
    queue = JobQueue(print)
    for _ in range(30):
        for _ in range(200):
            assert queue.states(since=0.0) == {"7": "RUNNING", "17_3": "PENDING"}
        now[0] += 0.1
    assert asked == ["squeue"] * 3
    assert queue.states(since=now[0]) is None  # a job submitted after the last answer is not missing from it


@pytest.mark.parametrize(
    ("text", "told_instead"),
    [
        ("--array=0-3", "--slurm: ccl sets --array itself; leave it out"),
        ("-p gpu -o out.txt", "--slurm: ccl sets -o itself; leave it out"),
        ("--comment 'a", """--slurm "--comment 'a": no closing quotation"""),
    ],
)
def test_options_that_are_not_the_user_s(cluster: SlurmStandIn, text: str, told_instead: str) -> None:
    with pytest.raises(UserError) as caught:
        sbatch_options(text)
    assert str(caught.value) == told_instead


def test_a_machine_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        with pytest.raises(UserError, match=f"there is no {name} on this machine"):
            sbatch_options("--time=5")
        (tmp_path / name).touch(mode=0o755)
    assert sbatch_options("--time=5") == ["--time=5"]


def test_words_of_a_full_queue() -> None:
    assert SlurmError("sbatch: Slurm temporarily unable to accept job, sleeping and retrying").is_full
    assert SlurmError("sbatch: AssocMaxSubmitJobLimit; Batch job submission failed: Job violates …").is_full
    assert not SlurmError("sbatch: Invalid partition name specified").is_full
