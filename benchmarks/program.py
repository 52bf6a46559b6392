"""The program itself: start-up, memory, and a folder of a million files."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.timing import Row, fastest

NUM_FILES = 1_000_000


def start_up() -> Iterator[Row]:
    """Seconds of `ccl --help` ÷ those of importing torch."""

    def call(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True)

    help_s, torch_s = fastest(call("-m", "ccl", "--help"), call("-c", "import torch"), rounds=5)
    yield Row("start-up: ccl --help ÷ import torch", help_s / torch_s, 0.35, at_least=False)


def memory() -> Iterator[Row]:
    """Peak resident memory of a run on all of CIFAR-100 (needs CCL_DATA), in GB, with cifar100-mini's network."""
    if not (Path(os.environ.get("CCL_DATA", "data")) / "cifar-100-python").is_dir():
        print("memory: left out, CCL_DATA has no cifar-100-python")
        return
    words = ["strategy=ccl", "epochs=1", "threads=1", "data.classes=100", "probe.after=last", "steps=5"]
    sets = [word for assignment in words for word in ("--set", assignment)]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "ccl", "run", "cifar100-mini", *sets, "--out", scratch + "/run"]
        subprocess.run(command, check=True, capture_output=True)
        yield Row("memory: peak of a run on all of CIFAR-100 (GB)", _peak(scratch), 1.2, at_least=False)


def _peak(scratch: str) -> float:
    status = json.loads((Path(scratch) / "run" / "status.json").read_text())
    return float(status["peak_memory_bytes"]) / 1e9


_SCAN = """
import sys, time
from pathlib import Path
from ccl.data.folders import scan
from ccl.runs.session import peak_memory

started = time.perf_counter()
found = scan(Path(sys.argv[1]))
count = len(found.train) + (len(found.test) if found.test else 0)
assert count == int(sys.argv[2]), count
print(time.perf_counter() - started, peak_memory() / 1e9)
"""


def folder_scan() -> Iterator[Row]:
    """A million files in a thousand folders, found and labelled, not decoded: seconds, and GB of the whole process."""
    in_memory = Path("/dev/shm")  # where making and deleting them takes seconds; only the scan is measured
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as scratch:
        for number in range(1000):
            folder = os.path.join(scratch, f"class{number:04d}")
            os.mkdir(folder)
            for image in range(NUM_FILES // 1000):
                os.close(os.open(f"{folder}/{image:06d}.JPEG", os.O_CREAT | os.O_WRONLY))
        command = [sys.executable, "-c", _SCAN, scratch, str(NUM_FILES)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seconds, peak = map(float, told)
    yield Row("folder scan: seconds for 1,000,000 files", seconds, 60.0, at_least=False)
    yield Row("folder scan: peak memory (GB)", peak, 1.0, at_least=False)
