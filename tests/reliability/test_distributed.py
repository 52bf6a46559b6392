"""Promises of several processes under torchrun: a killed rank, a signal, another number of ranks, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_test import fingerprint
from processes import Process
from tiny import TINY

from ccl.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.timeout(280)

HANG = 120  # seconds: what no run here comes near on two busy cores
SMALL = (
    *(*TINY, "data.images_per_class=20", "epochs=6", "batch_size=16", "encoder.dim=16", "encoder.batch_norm_groups=2"),
    *("moco_v2.queue_size=64", "extra_sample_queue.size=16", "threads=1", "device=cpu"),
    "checkpoint.minutes=0.005",  # every third of a second: kills meet half-written ones too
)

FAILING = """
import os
from ccl.training import Learner
from ccl.cli import main

real, calls = Learner.total, []
def total(*arguments):
    calls.append(1)
    if os.environ["RANK"] == "1" and len(calls) == 5:
        raise OSError("the disk of rank 1 is gone")
    return real(*arguments)
Learner.total = total
main()
"""


def command(folder: Path, num_ranks: int, *options: str, settings: tuple[str, ...] = SMALL) -> list[str]:
    assignments = [word for assignment in settings for word in ("--set", assignment)]
    run = ["-m", "ccl", "run", "demo", *assignments, "--out", str(folder)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), *options]
    return [sys.executable, *(launcher if num_ranks > 1 else []), *run]


Started = Process | subprocess.Popen[str]


def start(words: list[str]) -> Process:
    """Python with these words; of torchrun only the ranks have to import torch."""
    return Process(words[1:], is_merged=True)


def finish(process: Started, seconds: float = HANG) -> str:
    """Everything it said; one that hangs is ended and fails."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        for number in [process.pid, *workers(process)]:
            os.kill(number, signal.SIGKILL)
        raise AssertionError(f"still there after {seconds} seconds: {process.communicate()[0][-3000:]}") from None


def workers(launcher: Started) -> list[int]:
    """The processes that torchrun has started, by rank."""
    listed = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    environments = {int(number): Path(f"/proc/{number}/environ").read_bytes().split(b"\0") for number in listed}
    ranks = {
        int(entry.removeprefix(b"RANK=")): number
        for number, environment in environments.items()
        for entry in environment
        if entry.startswith(b"RANK=")
    }
    return [ranks[rank] for rank in sorted(ranks)]


def status(folder: Path) -> dict[str, Any]:
    path = folder / "status.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def wait_until(folder: Path, process: Started, is_there: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and process.poll() is None:
        if is_there(status(folder)):
            return
        time.sleep(0.02)
    raise AssertionError(f"it never came there: {status(folder)}, {finish(process, 1)[-3000:]}")


def is_learning(step: int, epoch: int, after: float = 0.0) -> Callable[[dict[str, Any]], bool]:
    def claim(now: dict[str, Any]) -> bool:
        is_new = now.get("state") == "running" and now["started"] > after
        return is_new and (now.get("step", 0), now.get("epoch", 0)) >= (step, epoch)

    return claim


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unbroken run of two ranks."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(command(folder, 2))
    told = finish(process)
    assert process.returncode == 0, told
    return folder


def test_one_rank_writes_and_all_are_counted(whole: Path) -> None:
    assert status(whole)["state"] == "complete"
    assert json.loads((whole / "protocol.json").read_text())["world_size"] == 2
    checkpoint = CheckpointStore(whole / "checkpoints").newest()
    assert checkpoint.about["world_size"] == 2
    epochs = rows(whole, "epoch")
    assert [(row["step"], row["epoch"]) for row in epochs] == [
        (step, epoch) for step in (1, 2) for epoch in range(1, 7)
    ]
    assert {row["num_images"] for row in epochs} == {80, 88}  # of both ranks; eight are remembered
    assert (whole / "report.html").exists()
    assert len(list((whole / "memory").glob("*.png"))) == 16


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[(0, 2, 1)], [(1, 1, 2), (0, 2, 1)]])
def test_r3_killed_ranks_and_restarts_change_no_bit(
    kills: list[tuple[int, int, int]], whole: Path, tmp_path: Path
) -> None:
    """The rank that also writes, and before it the one that only works; torchrun starts both anew."""
    folder = tmp_path / "run"
    process = start(command(folder, 2, "--max-restarts", "3"))
    after = 0.0
    for victim, step, epoch in kills:
        wait_until(folder, process, is_learning(step, epoch, after))
        after = status(folder)["started"]
        os.kill(workers(process)[victim], signal.SIGKILL)
        killed = time.monotonic()
        wait_until(folder, process, lambda now, after=after: now.get("started", 0.0) > after)
        assert time.monotonic() - killed < 60
    told = finish(process)
    assert process.returncode == 0, told
    assert told.count("resuming at step") == len(kills)
    assert fingerprint(folder) == fingerprint(whole)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "afterwards"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_r4_another_number_of_ranks_goes_on_and_says_so(
    before: int, afterwards: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(command(folder, before))
    wait_until(folder, process, is_learning(1, 3))
    process.send_signal(signal.SIGTERM)
    told = finish(process, 60)
    assert process.returncode != 0
    assert told.count("ccl: stopped by SIGTERM; its state is saved, the same command resumes") == 1, told
    assert status(folder)["state"] == "stopped"
    process = start(command(folder, afterwards))
    told = finish(process)
    assert process.returncode == 0, told
    change = f"the number of processes changed since the checkpoint ({before} -> {afterwards})"
    assert f"{change}: the outcome will be near, not equal" in " ".join(told.split())
    assert status(folder)["state"] == "complete"
    losses, expected = ([row["losses"]["contrast"] for row in rows(path, "epoch")] for path in (folder, whole))
    assert losses == pytest.approx(expected, rel=0.05)
    assert [row["num_images"] for row in rows(folder, "epoch")] == [row["num_images"] for row in rows(whole, "epoch")]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_the_same_update(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(command(folder, 2))
    wait_until(folder, process, is_learning(1, 2))
    os.kill(workers(process)[1], signal.SIGTERM)
    told = finish(process, 60)
    assert "ccl: stopped by SIGTERM; its state is saved, the same command resumes" in told, told
    assert "has lost another rank" not in told
    assert status(folder)["state"] == "stopped"
    checkpoint = CheckpointStore(folder / "checkpoints").newest()
    assert checkpoint.about["position"]["step"] == 0  # at once, not at the end of the step


@pytest.mark.slow
def test_a_rank_that_fails_is_heard_and_ends_the_others(tmp_path: Path) -> None:
    """Only the second rank fails, in its fifth update, while the first waits for its gradients."""
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    words = command(tmp_path / "run", 2)
    at = words.index("-m", 3)
    started = time.monotonic()
    told = finish(start([*words[:at], str(script), *words[at + 2 :]]), 90)
    assert time.monotonic() - started < 60
    assert "ccl: rank 1: the disk of rank 1 is gone" in told, told
    assert "this is a fault of ccl" not in told
    assert status(tmp_path / "run")["state"] in ("stopped", "failed")
    assert not (tmp_path / "run" / "encoder.safetensors").exists()


def test_what_cannot_work_is_refused_once_in_one_line(tmp_path: Path) -> None:
    process = start(
        command(tmp_path / "run", 2, settings=("device=cpu", "encoder.batch_norm_groups=3", "batch_size=66"))
    )
    told = finish(process, 60)
    words = [line for line in told.splitlines() if line.startswith("ccl: ")]
    refusal = "encoder.batch_norm_groups 3 can't be spread over 2 processes; set it to 4 or another multiple of 2"
    assert words == [f"ccl: {refusal}, or to 1 for all processes together"]
    assert process.returncode == 1  # torchrun's own
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_left_alone(whole: Path) -> None:
    before = fingerprint(whole), (whole / "status.json").stat().st_mtime_ns
    process = start(command(whole, 2))
    told = finish(process, 60)
    assert process.returncode == 0, told
    assert "complete; nothing to do" in " ".join(told.split())
    assert (fingerprint(whole), (whole / "status.json").stat().st_mtime_ns) == before
