"""The display of a grid of runs: a table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ccl.runs.display import note
from ccl.runs.grid import CellState, Watcher
from ccl.runs.grid_cells import Cell

_MIN_GAIN = 0.01  # of one run: before that much is done, the time left is only a guess, and is not shown
_OTHER_LINES = 6  # of the terminal, other than the table's rows
_STYLES = {
    "waiting": "dim",
    "queued": "yellow",
    "running": "cyan",
    "elsewhere": "blue",
    "complete": "green",
    "failed": "red",
}

States = Mapping[str, CellState]


class Pace:
    """Estimates the time left, from what was done since the first look."""

    def __init__(self) -> None:
        self._began: tuple[float, dict[str, float]] | None = None

    def seconds_left(self, states: States, now: float) -> float | None:
        """Seconds left; None until enough is measured. Failed runs are left out."""
        if self._began is None:
            self._began = (now, {name: state.share for name, state in states.items()})
        started, before = self._began
        counted = {name: state.share for name, state in states.items() if state.state != "failed"}
        gained = sum(share - before[name] for name, share in counted.items())
        left = sum(1.0 - share for share in counted.values())
        return left * (now - started) / gained if gained >= _MIN_GAIN else None


def summary(states: States, seconds_left: float | None) -> str:
    """ "12 of 20 done, 2 running, about 14:20 left"."""
    found = [state.state for state in states.values()]
    parts = [f"{found.count('complete')} of {len(found)} done", f"{found.count('running')} running"]
    parts += [f"{found.count(name)} {name}" for name in ("queued", "elsewhere", "failed") if name in found]
    if seconds_left is not None and not {"complete", "failed"}.issuperset(found):
        parts.append(f"about {str(timedelta(seconds=round(seconds_left))).removeprefix('0:')} left")
    return ", ".join(parts)


def entry(state: CellState) -> str:
    """A cell of the table."""
    if state.state == "complete":
        return "done" if state.accuracy is None else f"{state.accuracy:.1f}"
    percent = f"{100 * state.share:.0f} %"
    words = {"waiting": "·", "queued": "queued", "running": percent, "elsewhere": f"elsewhere {percent}"}
    return words.get(state.state, state.state)


class _GridDisplay(Watcher):
    def __init__(self, console: Console) -> None:
        self.console, self._pace = console, Pace()

    def note(self, text: str) -> None:
        note(self.console, text)


class PlainGrid(_GridDisplay):
    """Lines for a log file: one when a run begins, ends or fails, and a summary at most every so many seconds."""

    def __init__(self, console: Console, cells: Sequence[Cell], every: float = 30.0) -> None:
        super().__init__(console)
        self.every = every
        self._titles = {cell.name: f"{cell.row}, seed {cell.seed}" for cell in cells}
        self._before: States = {}
        self._last = time.monotonic()

    def show(self, states: States) -> None:
        now = time.monotonic()
        seconds_left = self._pace.seconds_left(states, now)
        if not self._before:
            num_complete = sum(state.state == "complete" for state in states.values())
            self.note(f"{len(states)} runs, {num_complete} of them complete already")
        for name, state in states.items():
            before = self._before.get(name)
            if before is None or before.state != state.state:
                self._report(name, before, state)
        self._before = dict(states)
        if now - self._last >= self.every:
            self._last = now
            self.note(summary(states, seconds_left))

    def _report(self, name: str, before: CellState | None, state: CellState) -> None:
        if state.state == "waiting" or (before is None and state.state == "complete"):
            return
        words = {
            "queued": "is queued" + (f" at {100 * state.share:.0f} %" if state.share else ""),
            "running": f"resumes at {100 * state.share:.0f} %" if state.share else "starts",
            "elsewhere": "is run by another process",
            "complete": "complete" if state.accuracy is None else f"complete, {state.accuracy:.1f} % over all classes",
            "failed": "failed",
        }[state.state]
        self.note(f"{self._titles[name]}: {words}")


class LiveGrid(_GridDisplay):
    """A table of rows and seeds that fills as runs progress, and a line with the time left."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        super().__init__(console)
        self._rows: dict[str, dict[int, str]] = {}  # row -> seed -> the cell's name
        for cell in cells:
            self._rows.setdefault(cell.row, {})[cell.seed] = cell.name
        self._seeds = list(dict.fromkeys(cell.seed for cell in cells))
        self._live: Live | None = None

    def show(self, states: States) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        line = summary(states, self._pace.seconds_left(states, time.monotonic()))
        self._live.update(Group(self.table(states), Text(line)), refresh=True)

    def table(self, states: States) -> Table:
        """The rows that fit on the terminal; those with activity come first."""
        table = Table("Run", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="")
        for seed in self._seeds:
            table.add_column(Text(f"seed {seed}"), justify="right", no_wrap=True)
        room = max(1, self.console.height - _OTHER_LINES)
        quiet = {"waiting", "queued", "complete"}
        is_quiet = {row: {states[name].state for name in names.values()} <= quiet for row, names in self._rows.items()}
        kept = set(sorted(self._rows, key=is_quiet.__getitem__)[:room])
        for row, names in self._rows.items():
            if row in kept:
                found = [states[names[seed]] if seed in names else None for seed in self._seeds]
                shown = [Text(entry(state), style=_STYLES[state.state]) if state else Text("") for state in found]
                table.add_row(Text(row), *shown)
        if len(kept) < len(self._rows):
            table.add_row(Text(f"… and {len(self._rows) - len(kept)} more rows", style="dim"))
        return table

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_grid_display(console: Console, cells: Sequence[Cell]) -> Watcher:
    """The display of a grid: a table on a terminal, lines elsewhere."""
    return LiveGrid(console, cells) if console.is_terminal else PlainGrid(console, cells)
