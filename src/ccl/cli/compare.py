"""`ccl compare`: a grid of runs, and the tables and the page over all of them."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ccl.catalogue import OBJECTIVES
from ccl.cli import options
from ccl.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ccl.report.tables import Table
    from ccl.runs.grid_cells import Cell


def compare(
    preset: str = options.PRESET,
    out: Path = typer.Option(..., "--out", "-o", help="The folder of the runs, the tables and the page."),
    strategies: str = options.STRATEGIES,
    objectives: str | None = typer.Option(
        None, "--objectives", help="Which ones of `ccl methods`, joined by commas; or all. Else the preset's."
    ),
    steps: str | None = typer.Option(None, "--steps", help="Numbers of steps T, such as 5,10; else the preset's."),
    seeds: str = typer.Option("0-2", "--seeds", help="Numbers and ranges, such as 0-4 or 0,2,7."),
    vary: list[str] = typer.Option([], "--vary", metavar="KEY=V1,V2", help="Further values to cross; repeatable."),
    jobs: int | None = options.JOBS,
    assignments: list[str] = options.SET_ALL,
    data_root: str | None = options.DATA_ROOT,
    download: bool = options.DOWNLOAD,
    on: str = options.ON,
    slurm: str | None = options.SLURM,
    nproc_per_node: int | None = options.NPROC_PER_NODE,
    detach: bool = options.DETACH,
) -> None:
    """Run strategies over seeds, several runs at once, and end with tables of mean and spread and a page to look at.

    The same command again resumes where it stopped, and a larger grid in the same folder adds what is missing. Several
    such commands, also on several machines that share the disk, share the work. Exit code 1 if a run failed. With
    `all`, pairs of strategy and objective that don't go together are left out, and named. With --on slurm each run is a
    job of the cluster (docs/distributed.md); Ctrl-C cancels them, closing the terminal does not.

    Example: ccl compare cifar100-mini --data-root DATA --steps 5,10 --seeds 0-4 --out runs/table1
    """
    from ccl.cli.value_lists import assignment_lists, named, numbers

    place = options.Place(on, jobs, slurm, nproc_per_node, detach)
    assignments = options.with_data(assignments, data_root, download)
    chosen, learned = named(strategies, "--strategies", STRATEGIES), named(objectives, "--objectives", OBJECTIVES)
    columns, cuts, varied = numbers(seeds, "--seeds"), numbers(steps, "--steps"), assignment_lists(vary)

    from rich.console import Console

    from ccl.runs.display import note
    from ccl.runs.grid_cells import Grid, make_cells

    console = Console()
    grid = Grid(preset, chosen, columns, learned, cuts, varied, leaves_out="all" in (strategies, objectives))
    cells = make_cells(grid, assignments, partial(note, console))
    run_and_report(cells, out, f"ccl compare {Path(preset).stem}", console, place)


def run_and_report(
    cells: "Sequence[Cell]",
    out: Path,
    title: str,
    console: "Console",
    place: options.Place,
    name: str = "report",
    published: "Table | None" = None,
) -> None:
    """Run the grid, write and print the tables of its complete runs, and report failures, with exit code 1.

    With --detach, runs are only submitted, and those that are complete by now are reported.
    """
    from ccl.cli.grid_display import make_grid_display
    from ccl.reading import build_device
    from ccl.report.run_page import write_outcome
    from ccl.report.tables import print_tables
    from ccl.runs.forecast import refuse_too_large
    from ccl.runs.grid import run_grid

    if place.on == "local":
        for settings in {cell.row: cell.settings for cell in reversed(cells)}.values():
            refuse_too_large(settings, build_device(settings))
    jobs = None if place.detach else place.jobs
    outcome = run_grid(cells, out, jobs, make_grid_display(console, cells), place.launcher(out))
    if outcome.records:
        tables = write_outcome(outcome.records, out, title, name=name, published=published)
        print_tables(tables, out / f"{name}.html", console)
    for failure in outcome.failures:
        first, *rest = str(failure.reason).splitlines()
        options.echo(f"ccl: {failure.cell.row}, seed {failure.cell.seed} failed: {first}", err=True)
        for line in [*rest, f"its whole output: {failure.job.log}"]:
            options.echo(f"     {line}", err=True)
    if outcome.failures:
        failed = f"{len(outcome.failures)} of {len(cells)} runs failed and are not in the tables"
        options.echo(f"ccl: {failed}; the same command tries them again", err=True)
    if outcome.num_under_way:
        followed = "the same command without --detach follows them"
        options.echo(f"· {outcome.num_under_way} of {len(cells)} runs are with Slurm; {followed}")
    if outcome.num_waiting:
        waiting = f"{outcome.num_waiting} of {len(cells)} runs were not submitted"
        options.echo(f"ccl: {waiting}; the same command submits them", err=True)
    if outcome.failures or outcome.num_waiting:
        raise typer.Exit(1)
