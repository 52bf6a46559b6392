"""A run folder of the first checkpoint format, kept as a fixture: every later version must go on with it."""

import json
import shutil
from pathlib import Path

import torch
from rich.console import Console

from ccl import run
from ccl.runs.display import PlainDisplay
from ccl.runs.run_folder import read_run
from ccl.training.checkpoint import CheckpointStore

FIXTURE = Path(__file__).with_name("run_of_format_1")


def test_a_stopped_run_of_format_1_goes_on_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FIXTURE, folder)
    checkpoint = CheckpointStore(folder / "checkpoints").newest()
    assert checkpoint.about["position"] == {"step": 1, "epoch": 1, "batch": 1, "phase": "train"}
    record = run(read_run(folder).settings, folder, PlainDisplay(Console(quiet=True)))
    assert record.status["state"] == "complete"
    rows = [json.loads(line) for line in (FIXTURE / "expected_rows.jsonl").read_text().splitlines()]
    mine_all = [row for row in record.rows if row["kind"] != "memory"]  # a kind of row that came later
    assert [row["kind"] for row in mine_all] == [row["kind"] for row in rows]
    for mine, theirs in zip(mine_all, rows, strict=True):
        if mine["kind"] == "epoch":
            assert mine["learning_rate"] == theirs["learning_rate"]
            for name, value in theirs["losses"].items():
                assert abs(mine["losses"][name] - value) < 0.02 * abs(value) + 1e-3
    assert not torch.isnan(record.accuracy.per_step).any()
