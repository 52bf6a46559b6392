"""The ranking: order, prices relative to Finetuning, what is stored, and what labels are used for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccl.loading import load_settings
from ccl.report.ranking import labels_used, ranking
from ccl.report.run_groups import make_arms
from ccl.report.run_page import write_outcome
from ccl.report.tables import Table, text
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]


def rows(accuracy: float) -> list[list[float]]:
    """Of two steps; on all classes half of it."""
    return [[10.0, 10.0], [accuracy, 10.0], [accuracy, accuracy]]


@pytest.fixture
def records(record_of: Make) -> list[RunRecord]:
    """Finetuning 20 and 30, CCL 35 and 37, Upper Bound 28 at one seed; CCL alone says what it stores."""

    def make(strategy: str, accuracy: float, seed: int, seconds: float, **stored: int) -> RunRecord:
        record = record_of(strategy, rows(accuracy), f"seed={seed}", names=("one", "two"), folder=f"{strategy}{seed}")
        kept: list[dict[str, Any]] = [row for row in record.rows if row["kind"] != "epoch"]
        epoch = {"kind": "epoch", "step": 1, "epoch": 1, "losses": {"contrast": 1.0}, "seconds": seconds}
        status = {"state": "complete", "peak_memory_bytes": 5e6 + 1e6 * seed + 1e6 * (strategy == "ccl")}
        return replace(record, rows=[*kept, epoch], status=status | ({"stored_bytes": stored} if stored else {}))

    return [
        make("finetuning", 40, 0, 10.0),
        make("finetuning", 60, 1, 30.0),
        make("ccl", 70, 0, 50.0, images=1000, vectors=2000, networks=30_000),
        make("ccl", 74, 1, 40.0, images=3000, vectors=2000, networks=30_000),
        make("upper_bound", 56, 0, 5.0),
    ]


def cells(table: Table) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in table.rows]


def test_the_highest_accuracy_comes_first_with_its_price(records: list[RunRecord]) -> None:
    # Student's t of one degree: 12.706. CCL 36 ± 12.706 · √2 / √2; Finetuning 25 ± 12.706 · 5√2 / √2.
    assert cells(ranking(make_arms(records))) == [
        ["CCL", "36.0 ± 1.4", "23.3 to 48.7", "2.25×", "1.18×", "2.0", "2.0", "30.0", "number of classes"],
        ["Upper Bound", "28.0", "–", "0.25×", "0.91×", "–", "–", "–", "none"],
        ["Finetuning", "25.0 ± 7.1", "-38.5 to 88.5", "1.00×", "1.00×", "–", "–", "–", "none"],
    ]


def test_without_finetuning_there_is_no_price_and_without_a_probe_no_rank(
    records: list[RunRecord], record_of: Make
) -> None:
    silent = record_of("simple_rehearsal", None, names=("one", "two"))
    found = cells(ranking(make_arms([silent, *records[2:]])))
    assert [row[0] for row in found] == ["CCL", "Upper Bound", "Simple Rehearsal"]
    assert [row[3:5] for row in found] == [["–", "–"]] * 3


def test_a_price_is_that_of_the_same_objective(record_of: Make) -> None:
    def run(strategy: str, objective: str, seconds: float) -> RunRecord:
        record = record_of(strategy, rows(50), f"objective={objective}", names=("one", "two"))
        return replace(record, rows=[{"kind": "epoch", "seconds": seconds}])

    runs = [run("finetuning", "simclr", 2.0), run("ccl", "simclr", 6.0), run("ccl", "moco_v2", 6.0)]
    assert [row[3] for row in cells(ranking(make_arms(runs)))] == ["1.00×", "3.00×", "–"]


@pytest.mark.parametrize(
    ("assignments", "used"),
    [
        (["strategy=finetuning"], "none"),
        (["strategy=simple_rehearsal"], "number of classes"),  # it keeps so many images of each
        (["strategy=simple_rehearsal", "memory.budget=50"], "none"),
        (["strategy=ccl", "memory.budget=50"], "number of classes"),  # the number of its clusters
        (["strategy=ccl", "memory.budget=50", "memory.clusters=estimate"], "none"),
        (["strategy=ccl", "memory.clusters=7"], "none"),
        (["strategy=ccl", "memory.budget=50", "memory.selection=minred"], "none"),
        (["strategy=simple_rehearsal", "memory.per_cluster=0"], "none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_taken_from_labels(assignments: list[str], used: str) -> None:
    assert labels_used(load_settings("demo", assignments)) == used


def test_it_stands_beside_the_summary_where_there_is_something_to_rank(
    records: list[RunRecord], tmp_path: Path
) -> None:
    titles = [table.title for table in write_outcome(records, tmp_path, "all")]
    assert "Ranked by accuracy, with what each method costs and stores" in titles
    assert (tmp_path / "report-ranking.csv").read_text().splitlines()[1].startswith("CCL,36.000,1.414,")
    assert "Ranked by accuracy" in (tmp_path / "report.html").read_text()
    assert not any("Ranked" in table.title for table in write_outcome(records[:2], tmp_path / "one", "one arm"))


@pytest.mark.parametrize(("device", "price"), [("cpu", "1.50×"), ("cuda:0", "4.00×")])
def test_on_a_cpu_a_price_is_in_processor_time(record_of: Make, device: str, price: str) -> None:
    def run(strategy: str, seconds: float, cpu_seconds: float) -> RunRecord:
        record = record_of(strategy, rows(50), names=("one", "two"))
        epoch = {"kind": "epoch", "seconds": seconds, "cpu_seconds": cpu_seconds}
        return replace(record, rows=[epoch], protocol=record.protocol | {"device": device})

    runs = [run("finetuning", 10.0, 4.0), run("ccl", 40.0, 6.0)]
    found = {row[0]: row[3] for row in cells(ranking(make_arms(runs)))}
    assert found == {"Finetuning": "1.00×", "CCL": price}
