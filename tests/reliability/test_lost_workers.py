"""Loader workers that are killed, stopped or slow: a line within ten seconds, and the same bits after a resume."""

import os
import signal
import time
from pathlib import Path

import processes
import pytest
from crash_test import fingerprint
from processes import Process

import ccl

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are looked into through /proc")
ADVICE = "; set data.workers=0 or fewer, and the same command resumes"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two sizes, which are decoded one by one."""
    root = tmp_path_factory.mktemp("data")
    source = ccl.load_dataset("symbols", resize=24, images_per_class=8).train
    (root / "pictures").mkdir()
    for number in range(40):
        source.picture(number).resize((24 + number % 2, 24)).save(root / "pictures" / f"{number:02}.png")
    return root


def words(images: Path, folder: Path, epochs: int) -> list[object]:
    few = (
        "steps=1",
        "data.stream=data",
        "probe.after=never",
        "data.workers=2",
        "checkpoint.minutes=0.001",
        "threads=1",
    )
    small = ("batch_size=8", "encoder.width=4", "memory.clusters=2", "memory.per_cluster=2", "views.size=16")
    settings = ("dataset=folder:pictures", f"data.root={images}", "data.resize=null", f"epochs={epochs}", *few, *small)
    return ["-m", "ccl", "run", "demo", *(f"--set={one}" for one in settings), "--out", folder]


def below(process: int) -> list[int]:
    """The processes that it started, and those that they started, without those that started others."""
    found = [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [leaf for child in found for leaf in below(child) or [child]]


def workers(process: Process) -> list[int]:
    """The two loader workers of a run that learns."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if len(found := below(process.pid)) == 2:
            return found
        time.sleep(0.02)
    raise AssertionError(process.communicate(5))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_i8_a_lost_worker_is_a_line_within_ten_seconds_and_the_run_resumes(
    images: Path, tmp_path: Path, how: signal.Signals
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert processes.run(words(images, whole, 12)).returncode == 0
    process = Process(words(images, broken, 12))
    victim, other = workers(process)
    os.kill(victim, how)
    hit = time.monotonic()
    told = process.communicate(timeout=10 + 5)[1]
    assert time.monotonic() - hit < 10
    assert process.returncode == 1
    what = "was killed (signal 9; out of memory?)" if how == signal.SIGKILL else f"(process {victim}) does not answer"
    assert told.strip().splitlines()[-1] == f"ccl: a loader worker {what}{ADVICE}"
    assert "Traceback" not in told
    assert not any(Path(f"/proc/{pid}").exists() for pid in (victim, other))
    assert processes.run(words(images, broken, 12)).returncode == 0
    assert fingerprint(broken) == fingerprint(whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s1_a_signal_ends_a_run_whose_batches_do_not_come(images: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = Process(words(images, tmp_path / "run", 50))
    for worker in workers(process):
        os.kill(worker, signal.SIGSTOP)
    process.send_signal(number)
    sent = time.monotonic()
    told = process.communicate(timeout=20)[1]
    assert time.monotonic() - sent < 10
    assert process.returncode == 128 + number
    assert told.strip().splitlines()[-1].endswith("its state is saved, the same command resumes")
