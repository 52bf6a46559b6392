"""A stream's numbers as one plain table: summed up from run records, written as Markdown, as CSV and for a terminal."""

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ccl.errors import UserError
from ccl.evaluation import forgetting, forward_transfer
from ccl.report.run_folder import RunRecord
from ccl.strategies import TITLES

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Cell = str | float | None  # None: the number doesn't exist
MISSING = "–"
RANDOM_TITLE = "Random initialisation"
COLUMNS = (
    "Strategy",
    "All classes (%)",
    "Mean of steps (%)",
    "First step, after it (%)",
    "First step, at the end (%)",
    "Forgetting ↓",
    "Forward Transfer ↑",
    "Training (s)",
)
# Runs that differ in one of these did not solve the same task; seeds, machines and versions are only listed.
_COMPARABLE = (
    "dataset",
    "dataset fingerprint",
    "class order",
    "steps (T)",
    "backbone",
    "stem",
    "epochs per step",
    "batch size",
    "views",
    "probe",
)


@dataclass(frozen=True)
class Table:
    """Cells of plain text and numbers, a name in the first column, and a note of what they must be read with."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str


def summary(records: Sequence[RunRecord]) -> Table:
    """A row for the random initialisation and one per run; accuracies in percent, differences in percentage points."""
    if not records:
        raise UserError("there is no run to report on")
    names = labels(records)
    rows = [_random_row(records)]
    rows += [(name, *_numbers(record)) for name, record in zip(names, records, strict=True)]
    return Table("Accuracy of a linear probe after the last step", COLUMNS, tuple(rows), _note(records, names))


def labels(records: Sequence[RunRecord], with_seed: bool = True) -> list[str]:
    """What each run is called: its strategy, and what sets it apart from the others (objective, seed, else folder)."""
    objectives, seeds = ({getattr(record.settings, key) for record in records} for key in ("objective", "seed"))
    # Two runs alike in all that is named are told apart by their folders.
    alike = [(record.settings.strategy, record.settings.objective, record.settings.seed) for record in records]
    num_folder_names = len({record.folder.name for record in records})
    names = []
    for record, key in zip(records, alike, strict=True):
        name = TITLES.get(record.settings.strategy, record.settings.strategy)
        name += f", {record.settings.objective}" if len(objectives) > 1 else ""
        name += f", seed {record.settings.seed}" if with_seed and len(seeds) > 1 else ""
        if alike.count(key) > 1:
            name += f" ({record.folder.name if num_folder_names == len(records) else record.folder})"
        names.append(name)
    return names


def random_accuracy(records: Sequence[RunRecord]) -> tuple[list[float], float, int]:
    """Of the random initialisation: accuracy on each of T steps, on all classes, and of how many it is the mean.

    Runs that began alike count once. nan where no run of the first's number of steps was probed before training.
    """
    num_steps = len(records[0].step_names)
    measured = {
        (*record.accuracy.random_per_step.tolist(), float(record.accuracy.random_total))
        for record in records
        if record.accuracy is not None
        and record.accuracy.num_steps == num_steps
        and not record.accuracy.random_per_step.isnan().any()
    }
    if not measured:
        return [math.nan] * num_steps, math.nan, 0
    *per_step, total = map(fmean, zip(*sorted(measured), strict=True))
    return per_step, total, len(measured)


def text(cell: Cell) -> str:
    """A cell as it is read: numbers with one decimal, a dash for what doesn't exist."""
    if cell is None:
        return MISSING
    return cell if isinstance(cell, str) else f"{cell:z.1f}"


def to_markdown(table: Table) -> str:
    """Title, table and note as Markdown; names can't break out of their cells."""
    lines = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
    lines += [[text(cell) for cell in row] for row in table.rows]
    body = "\n".join(f"| {' | '.join(map(_markdown, line))} |" for line in lines)
    return f"{_markdown(table.title)}\n\n{body}\n\n{_markdown(table.note)}\n"


def to_csv(table: Table) -> str:
    """Header and rows only; a number that doesn't exist is an empty field, as programs expect it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if cell is None else text(cell) for cell in row] for row in table.rows])
    return file.getvalue()


def to_rich(table: Table) -> "RichTable":
    """For the terminal; all text is taken literally, never as rich's markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(table.title), caption=Text(table.note), caption_justify="left", header_style="")
    shown.box, shown.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    for place, column in enumerate(table.columns):
        cells = [column, *(text(row[place]) for row in table.rows)]
        longest_word = max(len(word) for cell in cells for word in cell.split())
        # A number's column is as wide as its longest word, so that the table fits into 80 columns.
        shown.add_column(Text(column), justify="right", width=longest_word)
    shown.columns[0].justify, shown.columns[0].min_width, shown.columns[0].width = "left", 14, None
    for row in table.rows:
        shown.add_row(*[Text(text(cell)) for cell in row])
    return shown


def _markdown(plain: str) -> str:
    line = " ".join(plain.splitlines())
    return html.escape(line, quote=False).replace("\\", "\\\\").replace("|", "\\|")


def _random_row(records: Sequence[RunRecord]) -> tuple[Cell, ...]:
    per_step, total, num_measured = random_accuracy(records)
    name = RANDOM_TITLE + (f" (mean of {num_measured})" if num_measured > 1 else "")
    # It never learns, so its accuracy on the first step's data is the same at any time.
    numbers = (total, fmean(per_step), per_step[0], per_step[0])
    return (name, *map(_known, numbers), None, None, None)


def _numbers(record: RunRecord) -> tuple[Cell, ...]:
    matrix, seconds = record.accuracy, record.seconds or None
    if matrix is None:
        return (*[None] * 6, seconds)
    per_step = matrix.per_step  # (T, T)
    last = (matrix.all_class_total[-1], per_step[-1].mean())
    # Without the earlier rows (Upper Bound, or probed at the end only) the maximum over time would be the last row.
    is_whole = not per_step.isnan().any()
    lost = forgetting(per_step) if is_whole else math.nan
    has_random = is_whole and not matrix.random_per_step.isnan().any()
    gained = forward_transfer(per_step, matrix.random_per_step) if has_random else math.nan
    return (*[_known(float(value)) for value in (*last, per_step[0, 0], per_step[-1, 0], lost, gained)], seconds)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _note(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    sentences = []
    facts = [_facts(record) for record in records]
    found = {key: list(dict.fromkeys(fact[key] for fact in facts if fact[key])) for key in facts[0]}
    different = [key for key in _COMPARABLE if len(found[key]) > 1]
    if different:
        sentences.append(f"These runs differ in {', '.join(different)}: their numbers can't be compared as they stand.")
    states = [str(record.status.get("state", "unknown")) for record in records]
    unfinished = [f"{name} ({state})" for name, state in zip(names, states, strict=True) if state != "complete"]
    if unfinished:
        sentences.append(f"Not complete: {', '.join(unfinished)}.")
    protocol = "; ".join(f"{key} {' / '.join(values) or 'unknown'}" for key, values in found.items())
    sentences.append(f"Protocol: {protocol}.")
    return " ".join(sentences)


def _facts(record: RunRecord) -> dict[str, str]:
    """What a number of this run must be read with; empty where it is unknown."""
    settings, told = record.settings, {key: str(value) for key, value in record.protocol.items()}
    probes = dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe")
    return {
        "dataset": told.get("dataset", ""),
        "dataset fingerprint": told.get("fingerprint", ""),
        "class order": told.get("class_order", ""),
        "steps (T)": str(len(record.step_names)),
        "backbone": told.get("backbone", ""),
        "stem": told.get("stem", ""),
        "epochs per step": str(settings.epochs),
        "batch size": str(settings.batch_size),
        "views": told.get("views", ""),
        "probe": ", ".join(probes),
        "seed": told.get("seed", ""),
        "device": told.get("device", ""),
        "threads": told.get("threads", ""),
        "ccl": told.get("ccl", ""),
        "torch": told.get("torch", ""),
        "Python": told.get("python", ""),
    }
