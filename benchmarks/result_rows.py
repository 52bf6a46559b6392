"""Rows of an experiment that is not a grid of runs: RUNS/NAME/results.csv, one for each arm and seed, as it goes."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccl.atomic_files import write_file

RESULTS = "results.csv"


def parsed(text: str) -> list[dict[str, str]]:
    """The rows of a result file."""
    return list(csv.DictReader(text.splitlines()))


def read_rows(path: Path) -> list[dict[str, str]]:
    """The results so far."""
    return parsed(path.read_text(encoding="utf-8")) if path.exists() else []


def is_there(path: Path, arm: str, seed: int) -> bool:
    """Whether an arm and seed has its row."""
    return any((row["arm"], row["seed"]) == (arm, str(seed)) for row in read_rows(path))


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """All results with one more, written aside first."""
    rows = [*read_rows(path), {key: str(value) for key, value in row.items()}]
    lines = [",".join(row), *(",".join(one.values()) for one in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "\n".join(lines) + "\n")


def seeds_of(rows: list[dict[str, str]]) -> str:
    """Which seeds they are of, as a list in words."""
    return ", ".join(map(str, sorted({int(row["seed"]) for row in rows})))
