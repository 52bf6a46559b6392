"""`ccl demo`: every strategy on the embedded stream."""

from pathlib import Path

import typer

from ccl.cli.options import JOBS, SET, STRATEGIES, Place


def demo(
    out: Path = typer.Option(Path("demo-run"), "--out", "-o", help="Where the runs and the report go."),
    strategies: str = STRATEGIES,
    seed: int = typer.Option(0, "--seed", min=0, help="Class order, initialisation and all draws."),
    jobs: int | None = JOBS,
    assignments: list[str] = SET,
) -> None:
    """Watch every strategy learn a stream of embedded images: five kinds of pictures, one after the other.

    Needs no download and a few minutes: a strategy per core at a time, each with its row of the table when it is done,
    and a page to look at in the end. Stopped, the same command resumes.

    Example: ccl demo --strategies finetuning,ccl --out demo-run
    """
    from rich.console import Console

    from ccl.cli.compare import run_and_report
    from ccl.cli.value_lists import names
    from ccl.runs.grid_cells import Grid, make_cells

    cells = make_cells(Grid("demo", names(strategies, "--strategies"), [seed]), assignments)
    title = "ccl demo: five kinds of pictures, one after the other"
    run_and_report(cells, out, title, Console(), Place(jobs=jobs))
