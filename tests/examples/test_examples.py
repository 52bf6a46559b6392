"""The examples run as they are printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.needs_data
def test_the_cifar_stream_from_parts() -> None:
    data = Path(os.environ.get("CCL_DATA") or ROOT.parent / "shared" / "data")
    if not (data / "cifar-100-python").is_dir():
        pytest.skip("cifar-100-python is not below CCL_DATA")
    script = ROOT / "examples" / "cifar100_stream.py"
    done = subprocess.run([sys.executable, script, data, "1"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"after step {step}" for step in range(1, 6)]
    assert lines[-1].endswith(" %, 400 images kept")
