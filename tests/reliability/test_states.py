"""A state in real processes: killed at random moments, fed again with the same folders, it comes to the same bits."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from drops import fingerprint
from real_data import root_with

from ccl.data import class_incremental, load_dataset

SMALL = (
    *("epochs=6", "batch_size=20", "threads=1", "device=cpu", "encoder.width=4", "encoder.dim=16"),
    *("moco_v2.queue_size=32", "extra_sample_queue.size=16", "checkpoint.minutes=0.002"),
)

Deliver = Callable[[int], Path]  # makes the folder of a drop


def ccl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ccl", *map(str, arguments)], capture_output=True, text=True)


def command(folder: Path, state: Path) -> list[str]:
    options = [word for assignment in SMALL for word in ("--set", assignment)]
    return [sys.executable, "-m", "ccl", "learn", str(folder), "--into", str(state), "--memory", "40", *options]


def learn_all(state: Path, deliver: Deliver, drops: Iterable[int], kills: int = 0, seed: int = 0) -> int:
    """Feed these drops, each deleted when it is learned; each is killed so many times first. The kills that hit."""
    draw, hits = random.Random(seed), 0
    for drop in drops:
        folder = deliver(drop)
        for _ in range(kills):
            process = subprocess.Popen(command(folder, state), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and not _is_at_work(state, process.pid):
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 1.0))
            hits += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        done = subprocess.run(command(folder, state), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder)
    return hits


def _is_at_work(state: Path, pid: int) -> bool:
    try:
        return f'"pid": {pid},' in (state / "learning" / "status.json").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_killed_at_random_moments_a_state_comes_to_the_same_bits(tmp_path: Path) -> None:
    source = load_dataset("textures", resize=16).train

    def deliver(drop: int) -> Path:
        folder = tmp_path / f"week-{drop + 1}"
        folder.mkdir(exist_ok=True)
        for number in range(drop * 60, drop * 60 + 60):
            (folder / f"{number:04d}.png").write_bytes(source.encoded(number * 7 % len(source)))
        return folder

    learn_all(tmp_path / "whole", deliver, [0])
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    learn_all(tmp_path / "whole", deliver, [1])
    assert learn_all(tmp_path / "broken", deliver, [1], kills=1) == 1
    assert fingerprint(tmp_path / "broken") == fingerprint(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.timeout(1800)
def test_five_weeks_of_cifar_from_the_first_folder_to_every_use(tmp_path: Path) -> None:
    cifar = load_dataset("cifar100", root_with("cifar-100-python"), classes=20)
    labels = cifar.train_labels
    weeks = class_incremental(labels, 5, seed=0)

    def deliver(drop: int) -> Path:
        folder = tmp_path / f"week-{drop + 1}"
        folder.mkdir(exist_ok=True)
        for label in weeks[drop].classes:
            for number in (labels == label).nonzero().flatten()[:40].tolist():
                (folder / f"{number * 7919 % 100_003:06d}.png").write_bytes(cifar.train.encoded(number))
        return folder

    labelled = tmp_path / "labelled"
    for label, name in enumerate(cifar.class_names):
        (labelled / name).mkdir(parents=True)
        for number in (cifar.test_labels == label).nonzero().flatten()[:10].tolist():
            (labelled / name / f"{number:05d}.png").write_bytes(cifar.test.encoded(number))

    learn_all(tmp_path / "whole", deliver, range(5))
    hits = learn_all(tmp_path / "state", deliver, range(5), kills=3, seed=1)
    assert hits >= 5
    assert fingerprint(tmp_path / "state") == fingerprint(tmp_path / "whole")
    assert not list(tmp_path.glob("week-*"))

    state = tmp_path / "state"
    assert "in 5 drops" in ccl("status", state).stdout
    some = labelled / "apple"
    for name in ("features.npz", "features.csv"):
        assert ccl("encode", state, some, "-o", tmp_path / name).returncode == 0
    with np.load(tmp_path / "features.npz") as content:
        assert content["features"].shape[0] == 10
    assert ccl("probe", state, labelled).returncode == 0
    assert ccl("predict", state, some, "-o", tmp_path / "predictions.csv").returncode == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 11
    first = min(some.iterdir())
    assert ccl("search", state, first, labelled, "-o", tmp_path / "search.html").returncode == 0
    for suffix in ("safetensors", "pt2"):
        told = ccl("export", state, "-o", tmp_path / f"encoder.{suffix}", "-i", labelled)
        assert told.returncode == 0, told.stderr
        assert "from the original's on 32 images" in told.stdout
    assert ccl("rollback", state, "--to", "2").returncode == 0
    assert "in 2 drops" in ccl("status", state).stdout
