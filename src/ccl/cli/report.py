"""`ccl report`: tables and a page over any runs."""

from pathlib import Path

import typer


def report(
    folders: list[Path] = typer.Argument(metavar="DIR…", help="Run folders, or folders with run folders below them."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Where the files go; else the first DIR."),
    name: str = typer.Option("report", "--name", help="What the files are called."),
    title: str | None = typer.Option(None, "--title", help="The headline of the page."),
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and one self-contained page of runs, with statistics over their seeds.

    Runs that differ in their seed only are averaged; a line above the table names whatever else they differ in. Runs
    that are not complete are shown and named. The page needs no network: mail it, or put it on any server.

    Example: ccl report runs/table1 --name table1 --out docs
    """
    from ccl.runs.run_folder import find_runs

    found = find_runs(folders)

    from rich.console import Console

    from ccl.report.arms import place_of
    from ccl.report.run_page import write_outcome
    from ccl.report.tables import print_tables
    from ccl.runs.run_folder import read_run

    target = out or folders[0]
    records = sorted(map(read_run, found), key=place_of)
    tables = write_outcome(records, target, title or f"{len(records)} runs", name=name)
    print_tables(tables, target / f"{name}.html", Console())
