"""The outcome of several runs as files: tables for people, programs and papers, and one page."""

from collections.abc import Sequence
from pathlib import Path

from ccl.atomic_files import write_file
from ccl.report.page import write_page
from ccl.report.run_folder import RunRecord
from ccl.report.run_groups import make_arms
from ccl.report.summary import differences, every_run, summary
from ccl.report.tables import Table, to_csv, to_latex, to_markdown


def make_tables(records: Sequence[RunRecord]) -> list[Table]:
    """What there is to say of these runs: the summary, and tests where several seeds allow them."""
    arms = make_arms(records)
    tested = differences(arms)
    is_tested = tested.rows and any(len(arm.records) > 1 for arm in arms)
    return [summary(arms), *([tested] if is_tested else [])]


def write_outcome(
    records: Sequence[RunRecord], folder: Path, title: str, *, name: str = "report", published: Table | None = None
) -> list[Table]:
    """Write name.html, name.md, name.tex, and as CSV the tables and every run with its stamp; returns the tables.

    `published` is what the paper itself reports, to stand beside.
    """
    tables = [*make_tables(records), *([] if published is None else [published])]
    folder.mkdir(parents=True, exist_ok=True)
    markdown = "\n".join([f"# {title}\n", *(to_markdown(table) for table in tables)])
    texts = {f"{name}.md": markdown, f"{name}.tex": "\n".join(map(to_latex, tables))}
    texts[f"{name}-runs.csv"] = to_csv(every_run(records))
    for table, kind in zip(make_tables(records), ("summary", "differences"), strict=False):
        texts[f"{name}-{kind}.csv"] = to_csv(table)
    for file, content in texts.items():
        write_file(folder / file, content)
    write_page(records, tables, folder / f"{name}.html", title)
    return tables
