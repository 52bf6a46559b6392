"""A crash test: a run killed at random moments and started again must end with the bits of an unbroken one."""

import hashlib
import json
import random
import time
from pathlib import Path

from processes import Process
from safetensors.torch import load_file

from ccl.runs.folder_lock import read_status
from ccl.runs.run_folder import ACCURACY, CHECKPOINTS, TIMES, read_rows
from ccl.runs.verifying import check_run
from ccl.training.checkpoint import CheckpointStore

# Three steps of embedded images, some ten seconds of learning on one thread.
SMALL = (
    *("dataset=symbols,textures,greek", "data.images_per_class=40", "data.classes=6", "epochs=8", "batch_size=24"),
    *("encoder.width=8", "encoder.dim=32", "moco_v2.queue_size=128", "extra_sample_queue.size=32"),
    *("memory.per_cluster=4", "threads=1", "device=cpu"),
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


def start(folder: Path) -> Process:
    """The run in a process of its own."""
    options = [word for assignment in SMALL for word in ("--set", assignment)]
    return Process(["-m", "ccl", "run", "demo", *options, "--out", folder], is_merged=True)


def finish(folder: Path) -> None:
    """Start it, or start it again, and wait for its end."""
    process = start(folder)
    told, _ = process.communicate()
    assert process.returncode == 0, told


def kill_and_resume(whole: Path, broken: Path, num_kills: int, seed: int) -> list[str]:
    """Kill the run `num_kills` times at random moments and let it end; the names of what differs, if anything.

    A run that ends before its next kill is compared, and another is begun in a folder of its own.
    """
    expected, draw = fingerprint(whole), random.Random(seed)
    seconds = sum(float(row.get("seconds", 0.0)) for row in read_rows(whole))
    kills, number = 0, 0
    differing: list[str] = []
    while kills < num_kills:
        number += 1
        folder = broken.with_name(f"{broken.name}-{number}")
        while kills < num_kills and read_status(folder).get("state") != "complete":
            process = start(folder)
            # Until it has imported everything and writes into its folder: a kill before that proves nothing.
            while process.poll() is None and read_status(folder).get("pid") != process.pid:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, seconds / 2))
            if process.poll() is None:
                process.kill()
                kills += 1
            process.communicate()
            differing += [f"{one.what}: {one.about}" for one in check_run(folder) if one.state in ("mendable", "lost")]
        finish(folder)
        found = fingerprint(folder)
        differing += sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return differing
