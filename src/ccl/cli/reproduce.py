"""`ccl reproduce`: the paper's tables and figures, each from one command."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ccl.cli.options import DATA_ROOT, DETACH, DOWNLOAD, JOBS, NPROC_PER_NODE, ON, SET_ALL, SLURM, Place, with_data

if TYPE_CHECKING:
    from ccl.runs.grid_cells import Cell


def reproduce(
    artefact: str = typer.Argument(
        metavar="ARTEFACT",
        help="table1, ablation, queue-size, clusters, objectives, figure1a, figure1b or transfer.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="The folder of the runs; several artefacts may share one."),
    scale: str = typer.Option("mini", "--scale", help="mini (two CPU cores) or paper (its settings; a GPU job)."),
    stream: str | None = typer.Option(None, "--stream", help="At mini scale: domain (the default) or class."),
    dataset: str | None = typer.Option(None, "--dataset", help="At paper scale: one of the datasets it was made on."),
    seeds: str | None = typer.Option(None, "--seeds", help="Numbers and ranges, such as 0-4; else as the paper's."),
    steps: str | None = typer.Option(None, "--steps", help="Numbers of steps T; else the artefact's."),
    jobs: int | None = JOBS,
    assignments: list[str] = SET_ALL,
    data_root: str | None = DATA_ROOT,
    download: bool = DOWNLOAD,
    on: str = ON,
    slurm: str | None = SLURM,
    nproc_per_node: int | None = NPROC_PER_NODE,
    detach: bool = DETACH,
    yes: bool = typer.Option(False, "--yes", "-y", help="Start the paper's scale even without a GPU."),
) -> None:
    """Make one of the paper's tables or figures: runs, statistics, a page, and the paper's own numbers next to them.

    At mini scale two streams answer different questions: domain (CIFAR-100, then pictures of other kinds: much is
    forgotten) and class (the paper's own class-incremental CIFAR-100). The cost is shown before anything starts, and
    runs that artefacts share are made once if they have the same --out. The same command again resumes. With --on slurm
    each run is a job of the cluster (docs/distributed.md).

    Example: ccl reproduce table1 --scale mini --data-root DATA --out runs/paper
    """
    from ccl.cli.value_lists import numbers
    from ccl.errors import UserError

    place = Place(on, jobs, slurm, nproc_per_node, detach)
    if scale not in ("mini", "paper"):
        raise UserError(f"--scale is mini or paper, not {scale!r}")
    if (stream if scale == "paper" else dataset) is not None:
        raise UserError("--stream belongs to --scale mini, --dataset to --scale paper")
    columns, lengths = numbers(seeds, "--seeds"), numbers(steps, "--steps")

    from rich.console import Console

    from ccl.cli.compare import run_and_report
    from ccl.report.paper_artefacts import choose
    from ccl.runs.display import note
    from ccl.runs.grid_cells import make_cells

    about, which, grid = choose(artefact, scale, stream or dataset, columns, lengths)
    cells = make_cells(grid, with_data(assignments, data_root, download))
    console = Console()
    note(console, f"{about.title}, scale {scale}, {which}")
    _show_cost(cells, out, scale, is_here=on == "local", yes=yes)
    title, name = f"{about.title} (scale {scale}, {which})", f"{artefact}-{which}"
    run_and_report(cells, out, title, console, place, name, about.published)


def _show_cost(cells: "list[Cell]", out: Path, scale: str, is_here: bool, yes: bool) -> None:
    """Show what is still to be run, before it starts; the paper's scale without a GPU needs --yes."""
    import torch
    from rich.console import Console

    from ccl.errors import UserError, counted
    from ccl.runs.display import note
    from ccl.runs.forecast import clock, seconds_here, work_of
    from ccl.runs.run_folder import is_finished

    left = [cell.settings for cell in cells if not is_finished(cell.settings, out / cell.name)]
    if not left:
        return
    has_gpu = torch.cuda.is_available()
    works = [work_of(settings) for settings in left]
    text = f"{counted(len(left), 'run')}, {sum(work.num_images for work in works) / 1e6:,.1f} million image passes"
    if is_here and (has_gpu or scale == "mini"):
        # Measured once for all seeds of a strategy and an objective.
        kinds = {(one.strategy, one.objective): (one, work.share_old) for one, work in zip(left, works, strict=True)}
        seconds = {kind: seconds_here(*asked) for kind, asked in kinds.items()}
        total = sum(work.cost * seconds[one.strategy, one.objective] for one, work in zip(left, works, strict=True))
        text += f": about {clock(total)} in one process here"
    note(Console(), f"to be run: {text}")
    if scale == "paper" and is_here and not has_gpu and not yes:
        raise UserError(
            "--scale paper is a GPU job and this machine has none; use --scale mini, or --yes to start anyway"
        )
