"""`ccl demo`: every strategy on the embedded stream."""

from pathlib import Path

import typer


def demo(
    out: Path = typer.Option(Path("demo-run"), "--out", "-o", help="Where the runs and the report go."),
    strategies: str = typer.Option(
        "finetuning,simple_rehearsal,ccl,upper_bound", "--strategies", help="Which ones, joined by commas."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Class order, initialisation and all draws."),
    assignments: list[str] = typer.Option(
        [], "--set", "-s", metavar="KEY=VALUE", help="Change one setting; repeatable."
    ),
) -> None:
    """Watch every strategy learn a stream of embedded images: five kinds of pictures, one after the other.

    Needs no download and a few minutes; ends with a table and a page to look at. Stopped, the same command resumes.

    Example: ccl demo --strategies finetuning,ccl --out demo-run
    """
    from ccl.loading import load_settings

    names = [name.strip() for name in strategies.split(",") if name.strip()]
    runs = {
        name: load_settings("demo", [*assignments, f"strategy={name}", f"seed={seed}"]) for name in dict.fromkeys(names)
    }

    from ccl.report.page import write_page
    from ccl.report.summary import make_tables
    from ccl.report.tables import to_rich
    from ccl.runs import run
    from ccl.runs.display import make_display

    display = make_display()
    records = [run(settings, out / name, display) for name, settings in runs.items()]
    tables = make_tables(records)
    write_page(records, tables, out / "report.html", "ccl demo: five kinds of pictures, one after the other")
    display.console.print(to_rich(tables[0], display.console.width))
    display.note(f"the page to look at: {out / 'report.html'}")
