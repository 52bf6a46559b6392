"""A session of training, its folder's lock, and what it stores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from breaking import quiet
from tiny import learn, tiny_settings

from ccl import run
from ccl.errors import UserError
from ccl.runs.build import build_learner
from ccl.runs.folder_lock import STATUS, locked
from ccl.runs.one_run import stored
from ccl.runs.session import peak_memory

CHILD = "from ccl.runs.session import peak_memory; print(peak_memory())"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_large_parent_does_not_count() -> None:
    held = bytearray(b"x") * 900_000_000
    assert peak_memory() > len(held)
    told = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert 10_000_000 < int(told) < 800_000_000


def test_the_holder_is_named_as_far_as_it_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(UserError, match="is in use by another process, which has just begun; wait"), locked(folder):
            pass
        (folder / STATUS).write_text(json.dumps({"state": "running", "pid": 17, "host": "here"}))
        (folder / "settings.yaml").write_text("")
        with pytest.raises(UserError, match="is in use by process 17 on here; wait"), locked(folder):
            pass


def test_what_a_process_killed_at_its_start_leaves_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / ".settings.0a1b.part.yaml").touch()
    with locked(tmp_path):
        pass


CPU = torch.device("cpu")


def network_bytes() -> int:
    encoder = build_learner(tiny_settings("strategy=finetuning", "objective=simclr"), CPU).encoder
    floats = sum(parameter.numel() for parameter in encoder.parameters())
    norms = [part for part in encoder.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    return 4 * floats + sum(4 * 2 * norm.num_features + 8 for norm in norms)


QUEUE = 4 * 32 * 8 + 8 * 32 + 8  # 32 rows of 8 floats, their ids, the cursor
EXTRA = 4 * 8 * 8 + 8 * 8 + 8


@pytest.mark.parametrize(
    ("assignments", "num_networks", "vectors"),
    [
        (("strategy=finetuning", "objective=simclr"), 0, 0),
        (("strategy=finetuning", "objective=moco_v2"), 1, QUEUE),  # the key encoder
        (("strategy=ccl", "objective=moco_v2"), 2, QUEUE + EXTRA),  # and the teacher
        (("strategy=weight_merging", "objective=simclr"), 1, 1),  # the weights from before, and whether there are some
    ],
)
def test_networks_and_vectors_beside_the_encoder(assignments: tuple[str, ...], num_networks: int, vectors: int) -> None:
    found = stored(build_learner(tiny_settings(*assignments), CPU))
    assert found == {"images": 0, "vectors": vectors, "networks": num_networks * network_bytes()}


def test_a_run_says_what_it_stores_at_its_end(tmp_path: Path) -> None:
    settings = tiny_settings("strategy=simple_rehearsal", "epochs=1", "probe.after=last")
    record = run(settings, tmp_path / "run", quiet())
    learner, _ = learn(settings)
    assert record.status["stored_bytes"] == stored(learner)
    files = [path for path in (tmp_path / "run" / "memory").iterdir() if path.suffix == ".png"]
    assert record.status["stored_bytes"]["images"] == sum(path.stat().st_size for path in files) > 0
