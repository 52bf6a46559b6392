"""`ccl report` and `ccl reproduce` from outside: files that read back, one line for each mistake."""

import csv
import itertools
import json
import os
import subprocess
from pathlib import Path

import processes
import pytest
from breaking import quiet

from ccl import run
from ccl.loading import load_settings

TINY = ("dataset=digits,capitals", "data.images_per_class=10", "batch_size=16", "epochs=1", "threads=1")


def ccl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return processes.ccl(*words, environment=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"})


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two strategies on two seeds, named as `ccl compare` does."""
    folder = tmp_path_factory.mktemp("grid")
    for strategy, seed in itertools.product(("finetuning", "ccl"), (0, 1)):
        settings = load_settings("demo", [*TINY, f"strategy={strategy}", f"seed={seed}"])
        run(settings, folder / f"{strategy}-moco_v2-seed{seed}", quiet())
    return folder


def test_a_report_of_a_folder_of_runs(grid: Path, tmp_path: Path) -> None:
    done = ccl("report", grid, "--out", tmp_path, "--name", "mine")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.html",
        "mine.md",
        "mine.tex",
        "mine-runs.csv",
        "mine-arms.csv",
        "mine-differences.csv",
    }
    with (tmp_path / "mine-runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["strategy"], row["seed"]) for row in rows] == [
        ("finetuning", "0"),
        ("finetuning", "1"),
        ("ccl", "0"),
        ("ccl", "1"),
    ]
    for row in rows:
        folder = grid / f"{row['strategy']}-moco_v2-seed{row['seed']}"
        probes = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [probe for probe in probes if probe["kind"] == "probe"][-1]
        assert float(row["All classes (%)"]) == pytest.approx(last["all_class_total"], abs=0.06)
        assert len(row["code"]) == 10
        assert float(row["Memory (MB)"]) > 100
    assert "Finetuning" in done.stdout
    assert (tmp_path / "mine.html").read_text(encoding="utf-8").count('<section id="map">') == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "nowhere"], "there is no folder nowhere"),
        (["report", "."], "holds none"),
        (["reproduce", "tabel1", "--out", "x"], "did you mean 'table1'"),
        (["reproduce", "table1", "--scale", "huge", "--out", "x"], "--scale is mini or paper"),
        (["reproduce", "figure1b", "--stream", "domain", "--out", "x"], "choose from class"),
        (["reproduce", "table1", "--scale", "paper", "--stream", "class", "--out", "x"], "--stream belongs"),
        (["reproduce", "table1", "--scale", "paper", "--out", "x"], "--scale paper is a GPU job"),
        (["reproduce", "table1", "--data-root", "nowhere", "--out", "x"], "--data-root"),
        (["reproduce", "table1", "--detach", "--out", "x"], "--detach belongs to --on slurm"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CCL_DATA", raising=False)
    done = ccl(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
