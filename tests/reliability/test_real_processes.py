"""Promises that only real processes can prove: kills, signals, two runs in one folder."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import processes
import pytest
from crash_test import fingerprint, finish, kill_and_resume, start
from processes import Process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unbroken run that all others are measured by."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder)
    return folder


def wait_until_learning(folder: Path, process: Process) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        status = json.loads((folder / "status.json").read_text()) if (folder / "status.json").exists() else {}
        if status.get("pid") == process.pid and "epoch" in status:
            return
        time.sleep(0.02)
    raise AssertionError("the run never began to learn")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("num_kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_r1_kills_at_random_moments_change_no_bit(whole: Path, tmp_path: Path, num_kills: int) -> None:
    assert kill_and_resume(whole, tmp_path / "broken", num_kills, seed=num_kills) == []


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
        process = start(folder)
        wait_until_learning(folder, process)
        time.sleep(draw.uniform(0.0, 1.0))
        sent = time.monotonic()
        process.send_signal(number)
        told, _ = process.communicate(timeout=20)
        assert time.monotonic() - sent < 20
        if process.returncode == 0:  # it was done before the signal came
            break
        assert process.returncode == 128 + number
        assert "its state is saved, the same command resumes" in told
        assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    finish(folder)
    assert fingerprint(folder) == fingerprint(whole)


def test_s2_the_second_run_in_a_folder_is_refused_and_a_dead_holder_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder)
    wait_until_learning(folder, first)
    second = start(folder)
    told, _ = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"is in use by process {first.pid}" in told
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    finish(folder)
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
