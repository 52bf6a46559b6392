"""`ccl reproduce`: the paper's tables and figures, each from one command."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

if TYPE_CHECKING:
    from ccl.runs.cells import Cell


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
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, help="Runs at once; else one per core."),
    assignments: list[str] = typer.Option(
        [], "--set", "-s", metavar="KEY=VALUE", help="Change one setting of all runs; repeatable."
    ),
    data_root: str | None = typer.Option(None, "--data-root", help="Where data lies; else CCL_DATA, else ./data."),
    download: bool = typer.Option(False, "--download", help="Fetch CIFAR from its official address if it is absent."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Start the paper's scale even without a GPU."),
) -> None:
    """Make one of the paper's tables or figures: runs, statistics, a page, and the paper's own numbers next to them.

    At mini scale two streams answer different questions: domain (CIFAR-100, then pictures of other kinds: much is
    forgotten) and class (the paper's own class-incremental CIFAR-100). The cost is shown before anything starts, and
    runs that artefacts share are made once if they have the same --out. The same command again resumes.

    Example: ccl reproduce table1 --scale mini --data-root DATA --out runs/paper
    """
    from ccl.cli.lists import numbers
    from ccl.errors import UserError

    if scale not in ("mini", "paper"):
        raise UserError(f"--scale is mini or paper, not {scale!r}")
    if (stream if scale == "paper" else dataset) is not None:
        raise UserError("--stream belongs to --scale mini, --dataset to --scale paper")
    columns = None if seeds is None else numbers(seeds, "--seeds")
    lengths = None if steps is None else numbers(steps, "--steps")
    if data_root is not None:
        assignments = [*assignments, f"data.root={data_root}"]
    if download:
        assignments = [*assignments, "data.download=true"]

    from rich.console import Console

    from ccl.cli.compare import run_and_report
    from ccl.runs.artefacts import choose, find, with_axes

    which, grid = choose(artefact, cast(Literal["mini", "paper"], scale), stream or dataset)
    cells = with_axes(grid, columns, lengths).cells(assignments)
    about = find(artefact)
    console = Console()
    console.print(f"· {about.title}, scale {scale}, {which}", markup=False, highlight=False)
    _show_cost(cells, out, scale, yes)
    is_whole = run_and_report(
        cells,
        out,
        f"{about.title} (scale {scale}, {which})",
        console,
        jobs,
        name=f"{artefact}-{which}",
        published=about.published,
    )
    if not is_whole:
        raise typer.Exit(1)


def _show_cost(cells: "list[Cell]", out: Path, scale: str, yes: bool) -> None:
    """What is still to be run, before it starts; the paper's scale on a machine without a GPU needs --yes."""
    import torch

    from ccl.errors import UserError
    from ccl.folder import is_finished
    from ccl.runs.cost import estimate, step_sizes
    from ccl.runs.rates import in_words, measured_rate

    left = [cell for cell in cells if not is_finished(cell.settings, out / cell.name)]
    if not left:
        return
    has_gpu = torch.cuda.is_available()
    costs = [estimate(cell.settings, *step_sizes(cell.settings)) for cell in left]
    rate = None if has_gpu or scale == "paper" else measured_rate(left[0].settings)
    typer.echo(f"· to be run: {in_words(costs, rate)}")
    if scale == "paper" and not has_gpu and not yes:
        raise UserError(
            "--scale paper is a GPU job and this machine has none; use --scale mini, or --yes to start anyway"
        )
