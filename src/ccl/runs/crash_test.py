"""A crash test: a run killed at random moments and started again must end with the bits of an unbroken one."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from safetensors.torch import load_file

from ccl.run_files import ACCURACY, CHECKPOINTS, TIMES, read_rows, read_status
from ccl.training.checkpoint import CheckpointStore

# Three steps of embedded images, some ten seconds of learning on one thread.
SMALL = (
    "dataset=symbols,textures,greek",
    "data.images_per_class=40",
    "data.classes=6",
    "epochs=8",
    "batch_size=24",
    "encoder.width=8",
    "encoder.dim=32",
    "moco_v2.queue_size=128",
    "extra_sample_queue.size=32",
    "memory.per_cluster=4",
    "threads=1",
    "device=cpu",
)


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of every final tensor, remembered image and metric row; times, which are never the same, are left out."""
    checkpoint = CheckpointStore(folder / CHECKPOINTS).newest()
    assert checkpoint is not None, f"{folder} has no checkpoint"
    tensors = checkpoint.tensors | load_file(folder / "encoder.safetensors")
    found = {name: _hash(value.contiguous().numpy().tobytes()) for name, value in tensors.items()}
    for path in sorted((folder / "memory").glob("*")):
        found[f"memory/{path.name}"] = _hash(path.read_bytes())
    for number, row in enumerate(read_rows(folder)):
        kept = {name: value for name, value in row.items() if name not in TIMES}
        found[f"row {number}"] = _hash(json.dumps(kept, sort_keys=True).encode())
    if (folder / ACCURACY).exists():  # not of a run without probes
        found[ACCURACY] = _hash((folder / ACCURACY).read_bytes())
    return found


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def start(folder: Path, assignments: Sequence[str]) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    options = [word for assignment in assignments for word in ("--set", assignment)]
    command = [sys.executable, "-m", "ccl", "run", "demo", *options, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end; a run that fails is an error with its output."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a run failed with exit code {process.returncode}: {output[-2000:]}")


def kill_and_resume(
    whole: Path, broken: Path, assignments: Sequence[str], num_kills: int, seed: int, report: Callable[[str], None]
) -> Iterator[list[str]]:
    """Kill a run `num_kills` times at random moments and let it end; yields the names of what differs, if anything.

    A run that ends before its next kill is compared, and another is begun in a folder of its own.
    """
    expected, draw = fingerprint(whole), random.Random(seed)
    seconds = _learning_seconds(whole)
    kills, number = 0, 0
    while kills < num_kills:
        number += 1
        folder = broken.with_name(f"{broken.name}-{number}")
        while kills < num_kills and not _is_complete(folder):
            process = start(folder, assignments)
            _wait_for_work(folder, process)
            time.sleep(draw.uniform(0.0, seconds / 2))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                report(f"kill {kills} of {num_kills}: {_where(folder)}")
            process.communicate()
        finish(start(folder, assignments))
        found = fingerprint(folder)
        yield sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def _is_complete(folder: Path) -> bool:
    return read_status(folder).get("state") == "complete"


def _where(folder: Path) -> str:
    status = read_status(folder)
    return f"step {status['step']}, epoch {status['epoch']}" if "epoch" in status else "before the first epoch's end"


def _wait_for_work(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has imported everything and writes into its folder: a kill before that proves nothing."""
    while process.poll() is None and read_status(folder).get("pid") != process.pid:
        time.sleep(0.01)


def _learning_seconds(folder: Path) -> float:
    return sum(float(row.get("seconds", 0.0)) for row in read_rows(folder))
