"""Promises that only real processes can prove: kills, signals, two runs in one folder."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import processes
import pytest
from processes import Process

from ccl.runs import crash_test
from ccl.runs.crash_test import SMALL, fingerprint, finish, kill_and_resume


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unbroken run that all others are measured by."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(crash_test.start(folder, SMALL))
    return folder


def start(folder: Path, assignments: Sequence[str]) -> Process:
    """As a crash test starts it, without seconds of imports."""
    options = [word for assignment in assignments for word in ("--set", assignment)]
    return Process(["-m", "ccl", "run", "demo", *options, "--out", folder])


def wait_until_learning(folder: Path, process: Process) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        status = json.loads((folder / "status.json").read_text()) if (folder / "status.json").exists() else {}
        if status.get("pid") == process.pid and "epoch" in status:
            return
        time.sleep(0.02)
    raise AssertionError("the run never began to learn")


def differences(whole: Path, tmp_path: Path, num_kills: int, seed: int) -> list[str]:
    found = kill_and_resume(whole, tmp_path / "broken", SMALL, num_kills, seed, print)
    return [name for names in found for name in names]


def test_r1_two_kills_at_random_moments_change_no_bit(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_test, "start", start)
    assert differences(whole, tmp_path, 2, seed=0) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_r1_fifty_kills_at_random_moments_change_no_bit(whole: Path, tmp_path: Path) -> None:
    assert differences(whole, tmp_path, 50, seed=1) == []


def test_the_fingerprint_sees_a_single_changed_bit(whole: Path) -> None:
    before = fingerprint(whole)
    image = sorted((whole / "memory").glob("*.png"))[0]
    content = image.read_bytes()
    image.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        assert {name for name, value in fingerprint(whole).items() if before[name] != value} == {f"memory/{image.name}"}
    finally:
        image.write_bytes(content)
    assert any(name.startswith("learner/objective.key_encoder") for name in before)
    assert any(name.startswith("optimizer/") for name in before)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_s1_a_signal_saves_and_leaves_in_time(whole: Path, tmp_path: Path, number: signal.Signals) -> None:
    folder, draw = tmp_path / "run", random.Random(int(number))
    for _ in range(2):
        process = start(folder, SMALL)
        wait_until_learning(folder, process)
        time.sleep(draw.uniform(0.0, 1.0))
        sent = time.monotonic()
        process.send_signal(number)
        _, told = process.communicate(timeout=20)
        assert time.monotonic() - sent < 20
        if process.returncode == 0:  # it was done before the signal came
            break
        assert process.returncode == 128 + number
        assert "its state is saved, the same command resumes" in told
        assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    finish(start(folder, SMALL))
    assert fingerprint(folder) == fingerprint(whole)


def test_s2_the_second_run_in_a_folder_is_refused_and_a_dead_holder_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder, SMALL)
    wait_until_learning(folder, first)
    second = start(folder, SMALL)
    _, told = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"is in use by process {first.pid}" in told
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    finish(start(folder, SMALL))
    assert json.loads((folder / "status.json").read_text())["state"] == "complete"


def test_verify_tells_good_from_broken(whole: Path, tmp_path: Path) -> None:
    def verify(folder: Path) -> subprocess.CompletedProcess[str]:
        return processes.ccl("verify", folder)

    answer = verify(whole)
    assert answer.returncode == 0, answer.stdout
    assert "all is well" in answer.stdout
    state = sorted((whole / "checkpoints").iterdir())[-1] / "state.safetensors"
    content = state.read_bytes()
    state.write_bytes(content[: len(content) // 2])
    try:
        answer = verify(whole)
    finally:
        state.write_bytes(content)
    assert answer.returncode == 1
    assert "state.safetensors" in answer.stdout or "bytes" in answer.stdout
    assert verify(tmp_path).returncode == 2
