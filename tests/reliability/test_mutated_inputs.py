"""Pictures, archives and shards damaged by a seeded machine: each is read or has a reason, and memory is bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mutated
import pytest

MAX_RISE = 300_000_000
FEW, ALL = 60, 2000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [FEW, pytest.param(ALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["pictures", "archives"])
def test_what_a_machine_damaged_is_read_or_has_a_reason(tmp_path: Path, kind: str, count: int) -> None:
    inside = tmp_path / "inside"
    command = [sys.executable, mutated.__file__, kind, str(count), str(inside)]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=1100, env=os.environ | {"CCL_CACHE": str(inside / "cache")}
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    # libtiff itself writes a line of its own on some damage, which no call of Pillow silences.
    assert not [line for line in answer.stderr.splitlines() if "Traceback" in line or "Warning" in line or "/" in line]
    told = json.loads(answer.stdout)
    assert told["faults"] == []
    assert sum(told["seen"].values()) == count
    assert min(told["seen"].get(what, 0) for what in ("read", "refused")) > count / 50  # the machine damages, not kills
    assert told["rise"] < MAX_RISE
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]  # nothing was written elsewhere
