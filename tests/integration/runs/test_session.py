"""The memory that a process says it held is its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from ccl.runs.session import peak_memory

CHILD = "from ccl.runs.session import peak_memory; print(peak_memory())"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_large_parent_does_not_count() -> None:
    held = bytearray(b"x") * 900_000_000
    assert peak_memory() > len(held)
    told = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert 10_000_000 < int(told) < 800_000_000
