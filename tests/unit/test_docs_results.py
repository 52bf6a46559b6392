"""Tables in the docs against the numbers of the single runs that are kept beside them: none is typed by hand."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from benchmarks.adapting import ARMS
from benchmarks.keeping_up import ALL

from ccl.strategies import STRATEGIES, strategy_title

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"<!-- results: (\S+) (\w+)(?: of (\S+))? -->\n(.*?)<!-- end of results -->", re.DOTALL)


def blocks(*kinds: str) -> list[Any]:
    """Of every block of these kinds that has been filled: its grid, and the strategies it names, if any; its body."""
    return [
        pytest.param(f"{grid} {strategies}", body, id=f"{page.stem} {grid} {kind}")
        for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("**/*.md")))
        for grid, kind, strategies, body in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if kind in kinds and body
    ]


def rows_of(grid: str) -> list[dict[str, str]]:
    """The kept rows of a grid, or of the strategies of it that are named."""
    name, _, strategies = grid.partition(" ")
    with (DOCS / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if not strategies or row["strategy"] in strategies.split(",")]


def runs(grid: str, column: str) -> dict[str, dict[str, float]]:
    """A column's number of each run that has one, by what a table calls its arm and by seed."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows_of(grid):
        if row[column]:
            found[row["arm"]][row["seed"]] = float(row[column])
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


@pytest.mark.parametrize("column", ["All classes (%)", "Forgetting ↓", "Forward Transfer ↑", "Plasticity (%)"])
@pytest.mark.parametrize(("grid", "body"), blocks("arms"))
def test_a_table_is_the_mean_and_spread_of_its_runs(grid: str, body: str, column: str) -> None:
    measured = runs(grid, column)
    check(shown(body, column), {name: list(values.values()) for name, values in measured.items()})


@pytest.mark.parametrize(("grid", "body"), blocks("arms"))
def test_an_arm_stands_beside_finetuning_of_the_same_seeds(grid: str, body: str) -> None:
    measured = runs(grid, "All classes (%)")
    above = {
        name: fmean(value - measured["Finetuning"][seed] for seed, value in values.items())
        for name, values in measured.items()
        if name != "Finetuning"
    }
    found = {
        name: mean for name, (mean, _) in shown(re.sub(r" \([^|]* to [^|]*\)", "", body), "Above Finetuning").items()
    }
    assert found == {name: pytest.approx(value, abs=0.051) for name, value in above.items()}


@pytest.mark.parametrize(("grid", "body"), blocks("brief"))
def test_a_line_of_accuracies_is_the_mean_of_its_runs(grid: str, body: str) -> None:
    titles, _, numbers = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    measured = {arm: fmean(values.values()) for arm, values in runs(grid, "All classes (%)").items()}
    assert titles[1] == "random weights"
    shown = dict(zip(titles[2:], (float(number.partition(" ± ")[0]) for number in numbers[2:]), strict=True))
    assert shown == {arm: pytest.approx(value, abs=0.051) for arm, value in measured.items()}


@pytest.mark.parametrize(
    ("grid", "body", "column", "measure", "titles"),
    [
        *(
            pytest.param(*b.values, 5, "old linear", {name: arm.title for name, arm in ARMS.items()}, id=str(b.id))
            for b in blocks("adapting")
        ),
        *(
            pytest.param(*b.values, 1, ALL, {name: strategy_title(name) for name in STRATEGIES}, id=str(b.id))
            for b in blocks("drops")
        ),
    ],
)
def test_a_table_of_rows_is_their_mean(grid: str, body: str, column: int, measure: str, titles: dict[str, str]) -> None:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    shown = {line[0]: float(line[column].partition(" ± ")[0]) for line in lines[2:]}
    by_arm = defaultdict(list)
    for row in rows_of(grid):
        by_arm[titles[row["arm"]]].append(float(row[measure]))
    assert shown == {title: pytest.approx(fmean(values), abs=0.051) for title, values in by_arm.items()}
