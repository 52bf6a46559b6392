"""`ccl compare` with real runs: a grid made, stopped, killed, and made larger."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from processes import GRID, SMALL, Process

QUICK = [*SMALL, "--set=epochs=1", "--set=probe.after=last"]
# Some seconds of learning, so that there is a middle to be stopped in.
LONG = [*SMALL, "--set=epochs=30", "--set=probe.after=never"]


ENVIRONMENT = {**os.environ, "COLUMNS": "160", "CCL_DATA": "/nonexistent"}


def start(*arguments: str | Path) -> Process:
    """A command whose runs start as quickly as it does; those of `test_cli.py`'s demo are started as a user's are."""
    return Process(["-c", GRID, *arguments], ENVIRONMENT)


def start_slowly(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ccl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def ccl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # Of the 300 seconds that a test may take: the machine may be busy.
    return processes.run(["-c", GRID, *arguments], ENVIRONMENT, timeout=280)


def state(folder: Path) -> dict[str, object]:
    path = folder / "status.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of the run folders below; the tables and the page over all of them are written anew each time."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent != folder]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def wait_for_epoch(folder: Path, process: Process | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and process.poll() is None:
        if "epoch" in state(folder):
            return
        time.sleep(0.02)
    raise AssertionError(f"{folder} never began to learn: {process.communicate()}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two strategies, two seeds, two at once."""
    out = tmp_path_factory.mktemp("compare") / "ein Gitter ü"
    command = ["compare", "demo", *QUICK, "--strategies", "finetuning,ccl", "--seeds", "0-1", "--jobs", "2"]
    return out, ccl(*command, "--out", out)


def test_a_grid_ends_with_complete_runs_tables_and_a_page(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, answer = made
    assert answer.returncode == 0, answer.stderr
    names = [f"{strategy}-moco_v2-seed{seed}" for strategy in ("finetuning", "ccl") for seed in (0, 1)]
    assert [state(out / name)["state"] for name in names] == ["complete"] * 4
    assert answer.stdout.count(": running") == 4
    assert answer.stdout.count(": complete, ") == 4
    assert f"the page to look at: {out / 'report.html'}" in answer.stdout
    assert (out / "report.html").stat().st_size > 10_000
    table = (out / "report.md").read_text()
    assert "Finetuning" in table
    assert "CCL" in table
    assert "after step 2: all classes" in (out / "logs" / "ccl-moco_v2-seed1.txt").read_text()


def test_crossed_settings_are_arms_with_differences_to_the_first(tmp_path: Path) -> None:
    crossed = ["--strategies", "ccl", "--seeds", "0-1", "--vary", "temperature=0.5,0.2"]
    as_typed, by_size = ["compare", "demo", *QUICK, *crossed, "--out", tmp_path], ["report", tmp_path]
    for command, first, other in ((as_typed, "0.5", "0.2"), (by_size, "0.2", "0.5")):
        told = ccl(*command)
        assert told.returncode == 0, told.stderr
        assert "compared as they stand" not in told.stdout
        assert f"First value: temperature={first}." in " ".join(told.stdout.split())
        lines = (tmp_path / "report-differences.csv").read_text().splitlines()[1:]
        assert [line.split('"')[1::2] for line in lines] == [[f"CCL, temperature={value}" for value in (other, first)]]


def test_the_same_command_again_touches_no_run(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = made
    before = content(out)
    answer = ccl("compare", "demo", *QUICK, "--strategies", "finetuning,ccl", "--seeds", "0-1", "--out", out)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(": complete") == 4
    assert ": running" not in answer.stdout
    assert content(out) == before


def test_a_larger_grid_takes_over_and_a_failing_run_stops_no_other(
    made: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = made
    before = content(out)
    stranger = out / "simple_rehearsal-moco_v2-seed0"
    stranger.mkdir()
    (stranger / "thesis.txt").write_text("mine")
    answer = ccl("compare", "demo", *QUICK, "--strategies", "simple_rehearsal,ccl", "--seeds", "0", "--out", out)
    assert answer.returncode == 1
    assert "Simple Rehearsal, seed 0 failed: exit code 2" in answer.stderr
    assert "is not a run folder and not empty" in answer.stderr
    assert f"its whole output: {out / 'logs' / stranger.name}.txt" in answer.stderr
    assert "1 of 2 runs failed" in answer.stderr
    assert "the page to look at" in answer.stdout
    assert "Simple Rehearsal" not in (out / "report.md").read_text()
    assert [path.name for path in stranger.iterdir()] == ["thesis.txt"]
    after = content(out)
    assert {name: after[name] for name in before} == before


def test_a_grid_with_other_settings_is_refused_before_anything_starts(
    made: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = made
    before = content(out)
    answer = ccl("compare", "demo", *QUICK, "--set=temperature=0.3", "--strategies=ccl", "--seeds=0-2", "--out", out)
    assert answer.returncode == 2
    assert answer.stderr.count("temperature: 0.1 -> 0.3") == 2
    assert len(answer.stderr.splitlines()) == 2
    assert content(out) == before


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that a stopped and a killed grid must come to, bit for bit."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    answer = ccl("run", "demo", *LONG, "--out", out)
    assert answer.returncode == 0, answer.stderr
    return out


def assert_same_bits(run: Path, expected: Path) -> None:
    assert (run / "encoder.safetensors").read_bytes() == (expected / "encoder.safetensors").read_bytes()
    images = sorted(path.name for path in (expected / "memory").iterdir())
    assert sorted(path.name for path in (run / "memory").iterdir()) == images
    assert all((run / "memory" / name).read_bytes() == (expected / "memory" / name).read_bytes() for name in images)


@pytest.mark.slow
def test_a_stopped_grid_resumes_to_the_same_bits(tmp_path: Path, unbroken: Path) -> None:
    out = tmp_path / "grid"
    command = ["compare", "demo", *LONG, "--strategies", "ccl", "--seeds", "0", "--out", out]
    process = start(*command)
    run = out / "ccl-moco_v2-seed0"
    wait_for_epoch(run, process)
    process.terminate()
    told, error = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "runs under way save their state and end: 1" in told
    assert "stopped by SIGTERM; its state is saved, the same command resumes" in error
    assert state(run)["state"] == "stopped"
    answer = ccl(*command)
    assert answer.returncode == 0, answer.stderr
    assert "resuming at step" in (out / "logs" / f"{run.name}.txt").read_text()
    assert_same_bits(run, unbroken)


@pytest.mark.slow
def test_the_children_of_a_killed_parent_are_adopted(tmp_path: Path, unbroken: Path) -> None:
    out = tmp_path / "grid"
    command = ["compare", "demo", *LONG, "--strategies", "ccl", "--seeds", "0", "--out", out]
    process = start_slowly(*command)
    run = out / "ccl-moco_v2-seed0"
    wait_for_epoch(run, process)
    process.kill()
    orphan = int(str(state(run)["pid"]))
    os.kill(orphan, signal.SIGSTOP)  # or it might be done before the second parent looks
    try:
        second = start_slowly(*command)
        told = second.stdout.readline()
    finally:
        os.kill(orphan, signal.SIGCONT)
    rest, error = second.communicate(timeout=60)
    assert second.returncode == 0, error
    assert told.startswith("· CCL, seed 0: elsewhere")
    assert ": running" not in rest
    assert state(run)["pid"] == orphan
    process.communicate()
    assert_same_bits(run, unbroken)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["demo", "--strategies=ccl,finetunning"], "unknown strategy 'finetunning'; did you mean 'finetuning'?"),
        (["demo", "--vary=epochs=3,x"], "epochs: "),
        (["demo", "--on=slrm"], "--on 'slrm'; did you mean 'slurm'?"),
        (["demo", "--slurm=--time=5"], "--slurm belongs to --on slurm; add that, or leave --slurm out"),
        (["demo", "--detach"], "--detach belongs to --on slurm; add that, or leave --detach out"),
        (["demo", "--nproc-per-node=2"], "--nproc-per-node belongs to --on slurm"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(tmp_path: Path, arguments: list[str], told: str) -> None:
    answer = ccl("compare", *arguments, "--out", tmp_path / "grid")
    assert answer.returncode == 2
    assert told in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "grid").exists()
