"""`ccl demo`: every strategy on the embedded stream."""

from pathlib import Path

import typer

from ccl.cli.options import SET, STRATEGIES


def demo(
    out: Path = typer.Option(Path("demo-run"), "--out", "-o", help="Where the runs and the report go."),
    strategies: str = STRATEGIES,
    seed: int = typer.Option(0, "--seed", min=0, help="Class order, initialisation and all draws."),
    assignments: list[str] = SET,
) -> None:
    """Watch every strategy learn a stream of embedded images: five kinds of pictures, one after the other.

    Needs no download and a few minutes; ends with a table and a page to look at. Stopped, the same command resumes.

    Example: ccl demo --strategies finetuning,ccl --out demo-run
    """
    from ccl.cli.value_lists import names
    from ccl.loading import load_settings

    chosen = names(strategies, "--strategies")
    runs = {name: load_settings("demo", [*assignments, f"strategy={name}", f"seed={seed}"]) for name in chosen}

    from ccl.report.page import write_page
    from ccl.report.tables import print_tables
    from ccl.runs import run
    from ccl.runs.display import make_display

    display = make_display()
    records = [run(settings, out / name, display) for name, settings in runs.items()]
    tables = write_page(records, out / "report.html", "ccl demo: five kinds of pictures, one after the other")
    print_tables(tables[:1], out / "report.html", display.console)
