"""Losses that must not move: a change that is not meant to change learning must leave these numbers alone.

After a change that is meant to: CCL_WRITE_GOLDEN=1 pytest tests/reliability/test_golden.py, and say so in the commit.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import FAST_PAIRS
from tiny import learn, tiny_settings

from ccl.catalogue import NEGATIVES, OBJECTIVES

GOLDEN = Path(__file__).with_name("golden_losses.json")


def machine() -> dict[str, str]:
    """What decides how losses are rounded."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    keys = ("vendor_id", "cpu family", "model\t")
    words = [line.partition(":")[2].strip() for key in keys for line in lines if line.startswith(key)]
    cpu = " ".join(dict.fromkeys(words)) or "unknown"
    return {"torch": torch.__version__, "cpu": cpu, "kernels": torch.backends.cpu.get_cpu_capability()}


def losses(strategy: str, objective: str) -> list[dict[str, float]]:
    _, watcher = learn(tiny_settings(f"strategy={strategy}", f"objective={objective}"))
    return watcher.losses


def known() -> list[tuple[str, str]]:
    """The pairs that the file has, and those that it must have."""
    written = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return list(dict.fromkeys([*FAST_PAIRS, *(tuple(name.split()) for name in written)]))


@pytest.mark.parametrize(("strategy", "objective"), known())
def test_losses_are_those_of_the_golden_file(strategy: str, objective: str) -> None:
    found, name = losses(strategy, objective), f"{strategy} {objective}"
    if os.environ.get("CCL_WRITE_GOLDEN"):
        write(name, {"made_with": machine(), "losses": found})
    golden = json.loads(GOLDEN.read_text())[name]
    assert len(found) == len(golden["losses"])
    is_same_machine = golden["made_with"] == machine()
    has_negatives = NEGATIVES in OBJECTIVES[objective].gives
    for number, (mine, theirs) in enumerate(zip(found, golden["losses"], strict=True)):
        # Other processors round otherwise, and a stream amplifies it: the first batch is exact, later ones near. Batch
        # norm in a head amplifies it more, and some of those losses are around zero.
        tolerance = 1e-12 if is_same_machine else 1e-5 if number == 0 else 2e-2
        around = 0.0 if has_negatives or is_same_machine else 1e-6 if number == 0 else 2e-2
        assert mine == pytest.approx(theirs, rel=tolerance, abs=around), (number, mine, theirs)


def write(name: str, entry: dict[str, Any]) -> None:
    """Put an entry in the place of that of the same name; a line each."""
    entries = (json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}) | {name: entry}
    lines = [f"{json.dumps(key)}: {json.dumps(entries[key])}" for key in sorted(entries)]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
