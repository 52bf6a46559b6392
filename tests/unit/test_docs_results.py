"""Tables in the docs against the numbers of the single runs that are kept beside them: none is typed by hand."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest

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


def runs(grid: str) -> dict[str, list[float]]:
    """Accuracy on all classes of each run, by what a table calls its arm."""
    with (DOCS / "results" / f"{grid}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    has_objectives = len({row["objective"] for row in rows}) > 1
    found = defaultdict(list)
    for row in rows:
        name = strategy_title(row["strategy"]) + (f", {title_of(row['objective'])}" if has_objectives else "")
        found[name].append(float(row["All classes (%)"]))
    return dict(found)


def shown(body: str) -> dict[str, tuple[float, float | None]]:
    """Mean and standard deviation on all classes by the table's rows."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    place = lines[0].index("All classes (%)")
    found = {}
    for line in lines[2:]:
        mean, _, spread = line[place].partition(" ± ")
        found[line[0]] = (float(mean), float(spread) if spread else None)
    return {name: value for name, value in found.items() if not name.startswith("Random initialisation")}


@pytest.mark.parametrize(("grid", "body"), BLOCKS)
def test_a_table_is_the_mean_and_spread_of_its_runs(grid: str, body: str) -> None:
    measured, table = runs(grid), shown(body)
    assert table.keys() == measured.keys()
    for name, values in measured.items():
        mean, spread = table[name]
        assert mean == pytest.approx(fmean(values), abs=0.051)
        assert (spread is None) == (len(values) == 1)
        if spread is not None:
            assert spread == pytest.approx(stdev(values), abs=0.051)
