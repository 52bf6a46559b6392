"""Tables in the docs against the numbers of the single runs that are kept beside them: none is typed by hand."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest
from benchmarks.adapting import ARMS

from ccl.catalogue import title_of
from ccl.strategies import strategy_title

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"<!-- results: (\S+) (\w+) -->\n(.*?)<!-- end of results -->", re.DOTALL)
BLOCKS = [
    pytest.param(grid, body, id=f"{page.stem} {grid} {kind}")
    for page in sorted(DOCS.glob("**/*.md"))
    for grid, kind, body in _BLOCK.findall(page.read_text(encoding="utf-8"))
    if kind in ("summary", "ranking")
]

ADAPTING = [
    pytest.param(grid, body, id=f"{page.stem} {grid}")
    for page in sorted(DOCS.glob("**/*.md"))
    for grid, kind, body in _BLOCK.findall(page.read_text(encoding="utf-8"))
    if kind == "adapting" and body
]


def runs(grid: str, column: str) -> dict[str, dict[str, float]]:
    """A column's number of each run that has one, by what a table calls its arm and by seed."""
    with (DOCS / "results" / f"{grid}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    has_objectives = len({row["objective"] for row in rows}) > 1
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        name = strategy_title(row["strategy"]) + (f", {title_of(row['objective'])}" if has_objectives else "")
        if row[column]:
            found[name][row["seed"]] = float(row[column])
    return dict(found)


def shown(body: str, column: str) -> dict[str, tuple[float, float | None]]:
    """Mean and standard deviation of a column by the table's rows that have one."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    place = lines[0].index(column)
    found = {}
    for line in lines[2:]:
        if line[place] == "–":
            continue
        mean, _, spread = line[place].partition(" ± ")
        found[line[0]] = (float(mean), float(spread) if spread else None)
    return {name: value for name, value in found.items() if not name.startswith("Random initialisation")}


def check(table: dict[str, tuple[float, float | None]], measured: dict[str, list[float]]) -> None:
    assert table.keys() == measured.keys()
    for name, values in measured.items():
        mean, spread = table[name]
        assert mean == pytest.approx(fmean(values), abs=0.051)
        assert (spread is None) == (len(values) == 1)
        if spread is not None:
            assert spread == pytest.approx(stdev(values), abs=0.051)


@pytest.mark.parametrize(("grid", "body"), BLOCKS)
def test_a_table_is_the_mean_and_spread_of_its_runs(grid: str, body: str) -> None:
    measured = runs(grid, "All classes (%)")
    check(shown(body, "All classes (%)"), {name: list(values.values()) for name, values in measured.items()})


@pytest.mark.parametrize(("grid", "body"), [block.values for block in BLOCKS if "Plasticity (%)" in block.values[1]])
def test_plasticity_stands_beside_finetuning_s_of_the_same_seed(grid: str, body: str) -> None:
    measured = runs(grid, "Plasticity (%)")
    check(shown(body, "Plasticity (%)"), {name: list(values.values()) for name, values in measured.items()})
    above = {}
    for name, values in measured.items():
        strategy, comma, objective = name.partition(", ")
        baseline = measured.get(f"Finetuning{comma}{objective}", {})
        if strategy != "Finetuning" and baseline:
            above[name] = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    check(shown(body, "Plasticity against Finetuning"), above)


@pytest.mark.parametrize(("grid", "body"), ADAPTING)
def test_the_table_of_adapting_is_the_mean_of_its_rows(grid: str, body: str) -> None:
    with (DOCS / "results" / f"{grid}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    shown = {line[0]: float(line[5].partition(" ± ")[0]) for line in lines[2:]}  # linear on the old images
    by_arm = defaultdict(list)
    for row in rows:
        by_arm[ARMS[row["arm"]].title].append(float(row["old linear"]))
    assert shown == {title: pytest.approx(fmean(values), abs=0.051) for title, values in by_arm.items()}
