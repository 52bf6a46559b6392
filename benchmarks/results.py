"""`python -m benchmarks.results RUNS` or `make results RUNS=…`: the docs' tables from run folders, none typed by hand.

A page says what belongs where: between `<!-- results: GRID KIND -->` and `<!-- end of results -->` stands the table
KIND (arms or brief) or the picture (curves, forest or sweep) of complete runs: those below RUNS/GRID and those
kept in docs/results/GRID.jsonl, which they join (`benchmarks.kept_runs`). `GRID KIND of STRATEGIES`, joined by commas,
is about these alone. Or the table (adapting or drops) of the rows that an experiment of its own left in RUNS/GRID
(`benchmarks.result_rows`). Every run's numbers and protocol go to docs/results/GRID.csv, from which
`tests/unit/test_docs_results.py` computes the tables again; every test goes to docs/results/GRID.differences.csv.
Blocks of grids that have no runs stay as they are.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks import adapting, keeping_up, kept_runs
from benchmarks.result_rows import RESULTS, parsed
from ccl.atomic_files import write_file
from ccl.report.arm_table import arm_table, differences, every_run
from ccl.report.arms import Arm, has_seeds, make_arms, of_equal_steps, place_of, records_of
from ccl.report.drawings import accuracy_against, accuracy_over_stream, forest, varied_number
from ccl.report.measures import all_classes, random_accuracy
from ccl.report.tables import Table, to_csv, to_markdown
from ccl.runs.run_folder import find_runs, read_run

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- results: (\S+) (\w+)(?: of (\S+))? -->\n).*?(<!-- end of results -->)", re.DOTALL)


def brief(arms: Sequence[Arm]) -> Table:
    """One line of accuracies, for a front page."""
    _, untrained = random_accuracy(records_of(arms))
    seeds = sorted({record.settings.seed for record in records_of(arms)})
    cells = [untrained, *(arm.estimate(all_classes) for arm in arms)]
    titles = ("random weights", *(arm.name for arm in arms))
    return Table("", (f"seed {', '.join(map(str, seeds))}", *titles), (("all classes (%)", *cells),), "")


# docs/results.md says what they are.
_ARM_COLUMNS = (
    *("Strategy", "Seeds", "All classes (%)", "Above Finetuning", "p", "Gap closed (%)"),
    *("Forgetting ↓", "Forward Transfer ↑", "Plasticity (%)", "Stored (kB)"),
)


def arms_table(arms: Sequence[Arm]) -> Table:
    """The report's table of arms, with the columns of the docs."""
    whole = arm_table(arms)
    places = [place for place, name in enumerate(whole.columns) if name in _ARM_COLUMNS]
    rows = tuple(tuple(row[place] for place in places) for row in whole.rows)
    return Table("", tuple(whole.columns[place] for place in places), rows, "", warning=whole.warning)


TABLES: dict[str, Callable[[Sequence[Arm]], Table]] = {
    "arms": arms_table,
    "brief": brief,
}
ROW_TABLES: dict[str, Callable[[list[dict[str, str]]], Table]] = {
    "adapting": adapting.table,
    "drops": keeping_up.table,
}


def main() -> None:
    """Rewrite every block of every page whose runs are there."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    runs = Path(sys.argv[1])
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("**/*.md"))):
        text = page.read_text(encoding="utf-8")
        written = BLOCK.sub(partial(_filled, runs, page), text)
        if written != text:
            write_file(page, written)
            print(f"{page.relative_to(DOCS.parent)} is written anew")


def _filled(runs: Path, page: Path, found: "re.Match[str]") -> str:
    begin, grid, kind, strategies, end = found.groups()
    if kind in ROW_TABLES:
        kept, made = DOCS / "results" / f"{grid}.csv", runs / grid / RESULTS
        if made.is_file():
            write_file(kept, made.read_text(encoding="utf-8"))
        if not kept.is_file():
            return found[0]
        return f"{begin}{to_markdown(ROW_TABLES[kind](parsed(kept.read_text(encoding='utf-8'))))}{end}"
    arms = [arm for arm in _arms(runs / grid) if not strategies or arm.strategy in strategies.split(",")]
    if not arms:
        return found[0]
    body = to_markdown(TABLES[kind](arms)) if kind in TABLES else _picture(grid, kind, arms, page)
    return f"{begin}{body.strip()}\n{end}"


@cache
def _arms(folder: Path) -> list[Arm]:
    """The complete runs below a folder and those kept, in the order of the strategies; keeps them all and their CSV."""
    kept = DOCS / "results" / f"{folder.name}.jsonl"
    found = [read_run(run) for run in find_runs([folder])] if folder.is_dir() else []
    complete = [record for record in found if record.status.get("state") == "complete"]
    records = kept_runs.joined(kept_runs.read(kept), complete)
    if not records:
        return []
    records.sort(key=place_of)
    kept.parent.mkdir(exist_ok=True)
    kept_runs.write(kept, records)
    write_file(kept.with_suffix(".csv"), to_csv(every_run(records)))
    arms = make_arms(kept_runs.read(kept))  # with the digits that are kept, whichever runs were found
    if has_seeds(arms) and (tested := differences(arms)).rows:
        write_file(kept.with_suffix(".differences.csv"), to_csv(tested))
    return arms


def _picture(grid: str, kind: str, arms: Sequence[Arm], page: Path) -> str:
    """A PNG beside the docs' other pictures, and the line that shows it."""
    drawn: Figure | None
    if kind == "forest":
        name, drawn = f"{grid}-forest.png", forest(arms)
        words = "Points above Finetuning of the same seeds, with 95 % intervals"
    elif kind == "sweep":
        setting = varied_number(arms)
        assert setting is not None, f"{grid}: no one setting is varied with three numbers or more"
        name, drawn = f"{grid}.png", accuracy_against(arms, setting)
        words = f"Accuracy on all classes against {setting}" + (", with 95 % intervals" if has_seeds(arms) else "")
    else:
        assert kind == "curves", f"{page}: there is no block {grid} {kind}"
        num_steps, group = next(iter(of_equal_steps(arms).items()))
        name, drawn = f"{grid}-accuracy.png", accuracy_over_stream(group, num_steps)
        words = "Accuracy on all classes after each step, mean over seeds"
    assert drawn is not None, f"{grid}: a single seed has no interval"
    drawn.savefig(DOCS / "images" / name, dpi=110, bbox_inches="tight")
    place = os.path.relpath(DOCS / "images" / name, page.parent)
    return f"![{words}]({Path(place).as_posix()})\n"


if __name__ == "__main__":
    main()
