"""Losses that must not move: a change that is not meant to change learning must leave these numbers alone.

After a change that is meant to: CCL_WRITE_GOLDEN=1 pytest tests/reliability/test_golden.py, and say so in the commit.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from combinations import FAST_PAIRS
from tiny import learn, tiny_settings

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


@pytest.mark.parametrize(("strategy", "objective"), FAST_PAIRS)
def test_losses_are_those_of_the_golden_file(strategy: str, objective: str) -> None:
    found, name = losses(strategy, objective), f"{strategy} {objective}"
    if os.environ.get("CCL_WRITE_GOLDEN"):
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        golden.setdefault("made_with", machine())
        golden["losses"] = dict(sorted({**golden.get("losses", {}), name: found}.items()))
        elsewhere = golden.setdefault("made_elsewhere", {})  # by name: the machine of losses that were made on another
        elsewhere.pop(name, None)
        elsewhere |= {} if golden["made_with"] == machine() else {name: machine()}
        golden["made_elsewhere"] = dict(sorted(elsewhere.items()))
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert len(found) == len(golden["losses"][name])
    is_same_machine = golden.get("made_elsewhere", {}).get(name, golden["made_with"]) == machine()
    for number, (mine, theirs) in enumerate(zip(found, golden["losses"][name], strict=True)):
        # Other processors round otherwise, and a stream amplifies it: the first batch is exact, later ones near.
        tolerance = 1e-12 if is_same_machine else 1e-5 if number == 0 else 2e-2
        assert mine == pytest.approx(theirs, rel=tolerance, abs=0), (number, mine, theirs)
