"""`python -m benchmarks.results RUNS` or `make results RUNS=…`: the docs' tables from run folders, none typed by hand.

A page says what belongs where: between `<!-- results: GRID KIND -->` and `<!-- end of results -->` stands the table
KIND (summary, differences, ranking, brief or transfer) or the picture (curves, panels, forest or sweep) of complete
runs: those below RUNS/GRID and those kept in docs/results/GRID.jsonl, which they join (`benchmarks.kept_runs`). `GRID
KIND of STRATEGIES`, joined by commas, is about these alone. Or the table (adapting or drops) of the rows that an
experiment of its own left in RUNS/GRID (`benchmarks.result_rows`). Every run's numbers and stamp go to
docs/results/GRID.csv, from which `tests/unit/test_docs_results.py` computes the tables again. Blocks of grids that have
neither stay as they are.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import adapting, keeping_up, kept_runs
from benchmarks.result_rows import RESULTS, parsed
from ccl.atomic_files import write_file
from ccl.report import figures, measures
from ccl.report.comparisons import differences
from ccl.report.interval_plots import forest
from ccl.report.ranking import ranking
from ccl.report.run_groups import Arm, flat, has_seeds, make_arms, of_equal_steps, records_of
from ccl.report.stream_panels import stream_panels
from ccl.report.summary import every_run, random_accuracy, summary
from ccl.report.sweep_plot import accuracy_against, varied_number
from ccl.report.tables import Table, to_csv, to_markdown
from ccl.run_files import find_runs
from ccl.runs.run_folder import RunRecord, read_run
from ccl.strategies import STRATEGIES

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- results: (\S+) (\w+)(?: of (\S+))? -->\n).*?(<!-- end of results -->)", re.DOTALL)


def brief(arms: Sequence[Arm]) -> Table:
    """One line of accuracies, for a front page."""
    _, untrained, _ = random_accuracy(records_of(arms))
    seeds = sorted({record.settings.seed for record in records_of(arms)})
    cells = [untrained, *(arm.estimate(measures.all_classes) for arm in arms)]
    titles = ("random weights", *(arm.name for arm in arms))
    return Table("", (f"seed {', '.join(map(str, seeds))}", *titles), (("all classes (%)", *cells),), "")


def transfer(arms: Sequence[Arm]) -> Table:
    """The paper's measures of what is forgotten and of what earlier steps teach for later ones."""
    shown = {"Forgetting ↓": measures.forgotten, "Forward Transfer ↑": measures.transferred}
    rows = tuple((arm.name, *map(arm.estimate, shown.values())) for arm in arms if not arm.is_all_at_once)
    return Table("", ("Strategy", *shown), rows, "Mean ± standard deviation over seeds, in percentage points.")


TABLES: dict[str, Callable[[Sequence[Arm]], Table]] = {
    "summary": summary,
    "differences": differences,
    "ranking": ranking,
    "brief": brief,
    "transfer": transfer,
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
    records.sort(key=_place)
    kept.parent.mkdir(exist_ok=True)
    kept_runs.write(kept, records)
    write_file(kept.with_suffix(".csv"), to_csv(every_run(records)))
    return make_arms(kept_runs.read(kept))  # with the digits that are kept, whichever runs were found


def _place(record: RunRecord) -> tuple[Any, ...]:
    """Where a run stands: by its objective and strategy, then by what else it is set to, numbers by their size."""
    settings = record.settings
    parts = re.split(r"(\d+)", repr(flat(settings)))  # words and numbers in turns
    numbers = [int(part) if part.isdigit() else part for part in parts]
    return settings.objective, list(STRATEGIES).index(settings.strategy), settings.seed, numbers


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
        num_steps, group = next(iter(of_equal_steps(arms).items()))
        draw = stream_panels if kind == "panels" else figures.accuracy_over_stream
        name, drawn = f"{grid}-accuracy.png", draw(group, num_steps)
        words = "Accuracy on all classes after each step, mean over seeds"
    assert drawn is not None, f"{grid}: a single seed has no interval"
    drawn.savefig(DOCS / "images" / name, dpi=110, bbox_inches="tight")
    place = os.path.relpath(DOCS / "images" / name, page.parent)
    return f"![{words}]({Path(place).as_posix()})\n"


if __name__ == "__main__":
    main()
