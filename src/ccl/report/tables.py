"""A table of text, numbers and estimates, written as Markdown, CSV, LaTeX or to a terminal."""

import csv
import html
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl.atomic_files import csv_text
from ccl.errors import printable
from ccl.report.seed_statistics import Difference, Estimate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Cell = str | float | Estimate | None  # None: the number doesn't exist
MISSING = "–"


@dataclass(frozen=True)
class Table:
    """Cells of plain text and numbers, a name in the first column, and a note of what they must be read with."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str
    spare: tuple[str, ...] = ()  # columns that a narrow terminal may do without, in this order
    warning: str = ""  # above the rows: what is to be known before them


def text(cell: Cell) -> str:
    """A cell as it is read: numbers with one decimal, estimates as mean ± std, a dash for what doesn't exist."""
    if cell is None:
        return MISSING
    if isinstance(cell, Difference):
        bounds = interval(cell.low, cell.high)
        return f"{cell.mean:+z.1f}" + ("" if bounds is None else f" ({bounds})")
    if isinstance(cell, Estimate):
        spread = "" if math.isnan(cell.std) else f" ± {cell.std:.1f}"
        return f"{cell.mean:z.1f}{spread}"
    return cell if isinstance(cell, str) else f"{cell:z.1f}"


def interval(low: float, high: float, decimals: int = 1) -> str | None:
    """Two bounds as they are read; None where there are none."""
    return None if math.isnan(low) or math.isnan(high) else f"{low:z.{decimals}f} to {high:z.{decimals}f}"


def to_markdown(table: Table) -> str:
    """Title, table and note as Markdown; names can't break out of their cells."""
    lines = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
    lines += [[text(cell) for cell in row] for row in table.rows]
    body = "\n".join(f"| {' | '.join(map(markdown, line))} |" for line in lines)
    parts = (markdown(table.title), f"**{markdown(table.warning)}**" if table.warning else "", body)
    return "\n\n".join([*filter(None, parts), f"{markdown(table.note)}\n"])


def to_csv(table: Table) -> str:
    """Header and rows only, for programs: an estimate takes a column each for mean, std, interval and seeds."""
    has_spread = [any(isinstance(row[place], Estimate) for row in table.rows) for place in range(len(table.columns))]
    counts = [len(_PARTS) if spread else 1 for spread in has_spread]
    lines = [[[csv_text(column + part) for part in _PARTS] for column in table.columns]]
    lines += [[_fields(cell) for cell in row] for row in table.rows]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for line in lines:
        writer.writerow([field for fields, num in zip(line, counts, strict=True) for field in fields[:num]])
    return file.getvalue()


_PARTS = ("", ", std", ", low", ", high", ", seeds")


def _fields(cell: Cell) -> list[str]:
    if not isinstance(cell, Estimate):
        plain = "" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else csv_text(cell)
        return [plain, *[""] * (len(_PARTS) - 1)]
    numbers = (cell.mean, cell.std, cell.low, cell.high)
    return [*("" if math.isnan(number) else f"{number:.3f}" for number in numbers), str(cell.num)]


def to_latex(table: Table) -> str:
    r"""A `tabular` with booktabs' rules, caption below; every name is escaped. Needs \usepackage{booktabs}."""
    lines = [[_latex(column) for column in table.columns]]
    lines += [[_latex(text(cell)) for cell in row] for row in table.rows]
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    top = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule"]
    caption = rf"\caption{{{_latex(f'{table.title}. {table.warning}')} {_latex(table.note)}}}"
    return "\n".join([*top, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", caption, r"\end{table}", ""])


_LATEX = str.maketrans(
    {sign: rf"\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "’": "'"}
    | {"±": r"$\pm$", "×": r"$\times$", "−": "$-$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "÷": r"$\div$"}
)


def _latex(plain: str) -> str:
    return " ".join(plain.split()).translate(_LATEX)


def to_rich(table: Table, width: int = 80) -> "RichTable":
    """For a terminal of so many columns; all text is taken literally, never as rich's markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = _printable(table)
    shown = _fitting(table, width)
    left_out = [column for place, column in enumerate(table.columns) if place not in shown]
    note = f"Not shown for want of room: {', '.join(left_out)}. {table.note}" if left_out else table.note
    title = f"{table.title}\n{table.warning}" if table.warning else table.title
    made = RichTable(title=Text(title), caption=Text(note), caption_justify="left", header_style="")
    made.box, made.padding, made.min_width = box.SIMPLE_HEAD, (0, 1, 0, 0), min(width, 72)  # with room for the note
    for place in shown:
        made.add_column(Text(table.columns[place]), justify="right", width=_width(table, place))
    made.columns[0].justify, made.columns[0].min_width, made.columns[0].width = "left", _FIRST, None
    for row in table.rows:
        made.add_row(*[Text(text(row[place])) for place in shown])
    return made


def _printable(table: Table) -> Table:
    rows = tuple(tuple(printable(cell) if isinstance(cell, str) else cell for cell in row) for row in table.rows)
    columns, spare = (tuple(map(printable, names)) for names in (table.columns, table.spare))
    title, note, warning = map(printable, (table.title, table.note, table.warning))
    return Table(title, columns, rows, note, spare, warning)


def print_tables(tables: Iterable[Table], page: Path, console: "Console") -> None:
    """The tables on a terminal, and below them where the page of the same runs is."""
    for table in tables:
        console.print(to_rich(table, console.width))
    console.print(f"· the page to look at: {printable(str(page))}", markup=False, highlight=False, soft_wrap=True)


_FIRST = 14  # characters for the names, at least


def _fitting(table: Table, width: int) -> list[int]:
    """Places of the columns that fit side by side: the table's spare ones are left out first."""
    shown = list(range(len(table.columns)))
    for column in table.spare:
        if _FIRST + sum(_width(table, place) for place in shown[1:]) + 2 * len(shown) + 2 <= width:
            break
        shown.remove(table.columns.index(column))
    return shown


def _width(table: Table, place: int) -> int:
    """A number's column is as wide as its longest word, so that the table fits into 80 columns."""
    cells = [table.columns[place], *(row[place] for row in table.rows)]
    # An estimate stays on one line; words may be broken between.
    parts = [[text(cell)] if isinstance(cell, Estimate) else text(cell).split() for cell in cells]
    return max((len(part) for of_cell in parts for part in of_cell), default=0)


def markdown(plain: str) -> str:
    """One line that neither Markdown nor HTML can misread."""
    line = printable(" ".join(plain.splitlines()))
    return html.escape(line, quote=False).replace("\\", "\\\\").replace("|", "\\|")
