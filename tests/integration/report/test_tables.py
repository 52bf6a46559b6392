"""A table's ways out: Markdown, CSV, LaTeX and a narrow terminal; names from outside stay in their cells."""

import csv
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from ccl.report.seed_statistics import Difference, Estimate, estimate
from ccl.report.tables import Table, print_tables, text, to_csv, to_latex, to_markdown, to_rich


def of(name: str, *cells: float | Estimate | str | None, warning: str = "") -> Table:
    columns = ("Strategy", *(f"Column {number}" for number in range(len(cells))))
    return Table("Title", columns, ((name, *cells),), "Note.", columns[1:2], warning)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (-0.04, "0.0"),
        (-0.06, "-0.1"),
        (None, "–"),
        ("x", "x"),
        (Estimate(37.04, math.nan, math.nan, math.nan, 1), "37.0"),
        (Estimate(-0.04, 0.26, -1, 1, 3), "0.0 ± 0.3"),
        (Difference(2.0, 0.2, 1.503, 2.497, 3, 0.003), "+2.0 (1.5 to 2.5)"),
        (Difference(-0.04, math.nan, math.nan, math.nan, 1, math.nan), "+0.0"),
    ],
)
def test_a_cell_as_it_is_read(cell: float | Estimate | str | None, shown: str) -> None:
    assert text(cell) == shown


def test_markdown_reads_back_and_names_stay_in_their_cells() -> None:
    table = of("a|b\n<script>alert(1)</script>", 16.0, warning="Below <b>")
    title, warning, body, note = to_markdown(table).rstrip().split("\n\n")
    assert (title, warning, note) == ("Title", "**Below &lt;b&gt;**", "Note.")
    read = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in body.splitlines()]
    assert read[0] == ["Strategy", "Column 0"]
    assert read[2:] == [["a¦b &lt;script&gt;alert(1)&lt;/script&gt;", "16.0"]]


def test_csv_reads_back_with_empty_fields_for_gaps() -> None:
    read = list(csv.reader(io.StringIO(to_csv(of('a,"b"\nc', 46.0, None, estimate([1.0, 2.0]), estimate([5.0]))))))
    spread = [f"Column 2{part}" for part in ("", ", std", ", low", ", high", ", seeds")]
    assert read[0][:8] == ["Strategy", "Column 0", "Column 1", *spread]
    assert read[1][:5] == ['a,"b"\nc', "46.000", "", "1.500", "0.707"]
    assert read[1][-5:] == ["5.000", "", "", "", "1"]


def test_latex_escapes_what_would_break_it() -> None:
    found = to_latex(of("50% & more_{x}\\end", 37.0, 74.0, warning="Below 5 %."))
    assert r"50\% \& more\_\{x\}\textbackslash{}end & 37.0 & 74.0 \\" in found
    assert found.count(r"\\") == 2  # one line end for the head and one for the row
    assert r"\caption{Title. Below 5 \%. Note.}" in found


def test_a_narrow_terminal_leaves_out_spare_columns_says_so_and_takes_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = of("[red]x[/red]", "w" * 50, "v" * 20, warning="Below.")
    narrow, wide = (Console(file=io.StringIO(), width=width, record=True) for width in (60, 120))
    narrow.print(to_rich(table, 60))
    shown = narrow.export_text()
    assert "Not shown for want of room: Column 0. Note." in " ".join(shown.split())
    assert "www" not in shown
    assert "Below." in shown
    assert max(map(len, shown.splitlines())) <= 60
    wide.print(to_rich(table, 120))
    all_of_it = wide.export_text()
    assert "Not shown" not in all_of_it
    assert "[red]x[/red]" in all_of_it
    print_tables([table], Path("out/[b].html"), Console(width=80))
    assert "· the page to look at: out/[b].html" in capsys.readouterr().out
