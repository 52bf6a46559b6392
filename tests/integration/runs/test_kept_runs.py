"""Runs kept as text beside the docs give the tables that their folders gave, and join later ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import kept_runs

from ccl import run
from ccl.loading import load_settings
from ccl.report.arm_table import arm_table, differences
from ccl.report.arms import make_arms
from ccl.report.tables import to_markdown
from ccl.runs.run_folder import RunRecord, read_run

TINY = ["dataset=digits,greek", "data.images_per_class=12", "epochs=1", "encoder.width=8", "threads=1"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    """Two strategies of two seeds each, of which one brings defaults of its own."""
    folder, found = tmp_path_factory.mktemp("runs"), []
    for strategy in ("finetuning", "balanced_rehearsal"):
        for seed in (0, 1):
            out = folder / f"{strategy}{seed}"
            run(load_settings("demo", [*TINY, f"strategy={strategy}", f"seed={seed}"]), out)
            found.append(read_run(out))
    return found


def tables(records: list[RunRecord]) -> list[str]:
    arms = make_arms(records)
    return [to_markdown(table(arms)) for table in (arm_table, differences)]


def test_tables_of_kept_runs_are_those_of_their_folders(records: list[RunRecord], tmp_path: Path) -> None:
    kept_runs.write(tmp_path / "grid.jsonl", records)
    assert tables(kept_runs.read(tmp_path / "grid.jsonl")) == tables(records)


def test_later_runs_join_earlier_ones_and_replace_their_equals(records: list[RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "grid.jsonl"
    kept_runs.write(path, records[:3])
    joined = kept_runs.joined(kept_runs.read(path), records[2:])
    assert [record.settings.strategy for record in joined].count("balanced_rehearsal") == 2
    assert [record.settings.seed for record in joined] == [0, 1, 0, 1]
    assert joined[2] is records[2], "the folder that is there is preferred to what was kept of it"


def test_what_is_kept_is_small_and_names_no_machine(records: list[RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "grid.jsonl"
    elsewhere = records[0].settings.model_copy(
        update={"data": records[0].settings.data.model_copy(update={"root": str(tmp_path)})}
    )
    own = replace(records[0], settings=elsewhere)
    kept_runs.write(path, [own, *records[1:]])
    text = path.read_text()
    assert str(tmp_path) not in text
    assert str(records[0].folder) not in text
    assert "host" not in json.loads(text.splitlines()[1]).get("status", {})
    assert all(len(line) < 3000 for line in text.splitlines()[1:])
