"""Losses that must not move: a change that is not meant to change learning must leave these numbers alone.

After a change that is meant to: CCL_WRITE_GOLDEN=1 pytest tests/reliability/test_golden.py, and say so in the commit.
"""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny import learn, tiny_settings

from ccl.catalogue import OBJECTIVES
from ccl.strategies import STRATEGIES

GOLDEN = Path(__file__).with_name("golden_losses.json")


def losses(strategy: str, objective: str) -> list[dict[str, float]]:
    _, watcher = learn(tiny_settings(f"strategy={strategy}", f"objective={objective}"))
    return [{name: round(value, 6) for name, value in row.items()} for row in watcher.losses]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_of_the_golden_file(strategy: str, objective: str) -> None:
    found = losses(strategy, objective)
    if os.environ.get("CCL_WRITE_GOLDEN"):
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        golden[f"{strategy} {objective}"] = found
        GOLDEN.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())[f"{strategy} {objective}"]
    assert len(found) == len(golden)
    for number, (mine, theirs) in enumerate(zip(found, golden, strict=True)):
        # Other processors round otherwise, and a stream amplifies it: the first batch is exact, later ones near.
        assert mine == pytest.approx(theirs, rel=1e-5 if number == 0 else 2e-2), (number, mine, theirs)
