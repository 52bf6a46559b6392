"""`ccl demo`: every strategy on the embedded stream."""

from pathlib import Path

import typer


def demo(
    out: Path = typer.Option(Path("demo-run"), "--out", "-o", help="Where the runs and the report go."),
    strategies: str = typer.Option(
        "finetuning,simple_rehearsal,ccl,upper_bound", "--strategies", help="Which ones, joined by commas."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Class order, initialisation and all draws."),
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, help="Runs at once; else one per core."),
    assignments: list[str] = typer.Option(
        [], "--set", "-s", metavar="KEY=VALUE", help="Change one setting; repeatable."
    ),
) -> None:
    """Watch every strategy learn a stream of embedded images: five kinds of pictures, one after the other.

    Needs no download and a few minutes: a strategy per core at a time, each with its row of the table when it is done,
    and a page to look at in the end. Stopped, the same command resumes.

    Example: ccl demo --strategies finetuning,ccl --out demo-run
    """
    from ccl.cli.compare import make_grid, run_and_report

    cells = make_grid("demo", strategies, seeds=str(seed), assignments=assignments)

    from rich.console import Console

    title = "ccl demo: five kinds of pictures, one after the other"
    if not run_and_report(cells, out, title, Console(), jobs):
        raise typer.Exit(1)
