"""`ccl compare`: a grid of runs, and the tables and the page over all of them."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ccl.report.tables import Table
    from ccl.runs.cells import Cell


def compare(
    preset: str = typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name or a YAML file."),
    out: Path = typer.Option(..., "--out", "-o", help="The folder of the runs, the tables and the page."),
    strategies: str = typer.Option(
        "finetuning,simple_rehearsal,ccl,upper_bound",
        "--strategies",
        help="Which ones of `ccl methods`, joined by commas; or all.",
    ),
    objectives: str | None = typer.Option(
        None, "--objectives", help="Which ones of `ccl methods`, joined by commas; or all. Else the preset's."
    ),
    steps: str | None = typer.Option(None, "--steps", help="Numbers of steps T, such as 5,10; else the preset's."),
    seeds: str = typer.Option("0-2", "--seeds", help="Numbers and ranges, such as 0-4 or 0,2,7."),
    vary: list[str] = typer.Option([], "--vary", metavar="KEY=V1,V2", help="Further values to cross; repeatable."),
    jobs: int | None = typer.Option(
        None, "--jobs", "-j", min=1, help="Runs at once; else one per core. On a GPU, as many as fit into its memory."
    ),
    assignments: list[str] = typer.Option(
        [], "--set", "-s", metavar="KEY=VALUE", help="Change one setting of all runs; repeatable."
    ),
    data_root: str | None = typer.Option(None, "--data-root", help="Where data lies; else CCL_DATA, else ./data."),
    download: bool = typer.Option(False, "--download", help="Fetch CIFAR from its official address if it is absent."),
) -> None:
    """Run strategies over seeds, several runs at once, and end with tables of mean and spread and a page to look at.

    The same command again resumes where it stopped, and a larger grid in the same folder adds what is missing. Several
    such commands, also on several machines that share the disk, share the work. Exit code 1 if a run failed. With
    `all`, pairs of strategy and objective that don't go together are left out, and named.

    Example: ccl compare cifar100-mini --data-root DATA --steps 5,10 --seeds 0-4 --out runs/table1
    """
    if data_root is not None:
        assignments = [*assignments, f"data.root={data_root}"]
    if download:
        assignments = [*assignments, "data.download=true"]
    cells = _cells(preset, strategies, objectives, steps, seeds, vary, assignments)

    from rich.console import Console

    if not run_and_report(cells, out, f"ccl compare {Path(preset).stem}", Console(), jobs):
        raise typer.Exit(1)


def _cells(
    preset: str,
    strategies: str,
    objectives: str | None,
    steps: str | None,
    seeds: str,
    vary: list[str],
    assignments: list[str],
) -> "list[Cell]":
    """The grid that the words on the command line describe."""
    from ccl.catalogue import OBJECTIVES
    from ccl.cli.lists import assignment_lists, named, numbers
    from ccl.cli.pairs import pairs_left_out
    from ccl.loading import load_settings
    from ccl.strategies import STRATEGIES

    wanted, columns, varied = (
        named(strategies, "--strategies", STRATEGIES),
        numbers(seeds, "--seeds"),
        assignment_lists(vary),
    )
    learned = [] if objectives is None else named(objectives, "--objectives", OBJECTIVES)
    left_out = {}
    if "all" in (strategies, objectives):
        left_out = pairs_left_out(preset, assignments, wanted, learned)
    else:  # a typo is reported at once; the cells are made after torch, which takes seconds
        for name in wanted:
            load_settings(preset, [*assignments, f"strategy={name}"])

    from ccl.runs.cells import make_cells

    return make_cells(
        preset,
        strategies=wanted,
        objectives=learned,
        steps=[] if steps is None else numbers(steps, "--steps"),
        seeds=columns,
        vary=varied,
        assignments=assignments,
        left_out=left_out,
    )


def run_and_report(
    cells: "Sequence[Cell]",
    out: Path,
    title: str,
    console: "Console",
    jobs: int | None,
    name: str = "report",
    published: "Table | None" = None,
) -> bool:
    """Run the grid, write and print the tables of its complete runs, and report failures; True if there were none."""
    from ccl.cli.grid_display import make_grid_display
    from ccl.report.page import write_outcome
    from ccl.report.tables import to_rich
    from ccl.runs.grid import num_cores, run_grid

    outcome = run_grid(cells, out, jobs or num_cores(), make_grid_display(console, cells))
    if outcome.records:
        for table in write_outcome(outcome.records, out, title, name=name, published=published):
            console.print(to_rich(table, console.width))
        page = out / f"{name}.html"
        console.print(f"· the page to look at: {page}", markup=False, highlight=False, soft_wrap=True)
    for failure in outcome.failures:
        first, *rest = failure.reason.splitlines()
        lines = [f"ccl: {failure.cell.row}, seed {failure.cell.seed} failed: {first}"]
        lines += [f"     {line}" for line in [*rest, f"its whole output: {failure.log}"]]
        typer.echo("\n".join(lines), err=True)
    if outcome.failures:
        failed = f"ccl: {len(outcome.failures)} of {len(cells)} runs failed and are not in the tables"
        typer.echo(f"{failed}; the same command tries them again", err=True)
    return not outcome.failures
