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
    """A cell of the table: the accuracy of a complete run, else how far it is."""
    if state.accuracy is not None:
        return f"{state.accuracy:.1f} %"
    return f"{state.state} {100 * state.share:.0f} %" if 0.0 < state.share < 1.0 else state.state


class _GridDisplay(Watcher):
    def __init__(self, console: Console) -> None:
        self.console, self._pace = console, Pace()

    def note(self, text: str) -> None:
        note(self.console, text)


class PlainGrid(_GridDisplay):
    """Lines for a log file: one when a run's state changes, and a summary at most every so many seconds."""

    def __init__(self, console: Console, cells: Sequence[Cell], every: float = 30.0) -> None:
        super().__init__(console)
        self.every = every
        self._titles = {cell.name: f"{cell.row}, seed {cell.seed}" for cell in cells}
        self._before = dict.fromkeys(self._titles, "waiting")
        self._last = time.monotonic()

    def show(self, states: States) -> None:
        now = time.monotonic()
        seconds_left = self._pace.seconds_left(states, now)
        for name, state in states.items():
            if state.state not in ("waiting", self._before[name]):
                self.note(f"{self._titles[name]}: {'complete, ' if state.accuracy is not None else ''}{entry(state)}")
            self._before[name] = state.state
        if now - self._last >= self.every:
            self._last = now
            self.note(summary(states, seconds_left))


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
        self._live.update(Group(Text(line), self.table(states)), refresh=True)  # a small terminal shows the beginning

    def table(self, states: States) -> Table:
        table = Table("Run", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="")
        for seed in self._seeds:
            table.add_column(Text(f"seed {seed}"), justify="right", no_wrap=True)
        for row, names in self._rows.items():
            found = [states[names[seed]] if seed in names else None for seed in self._seeds]
            shown = [Text(entry(state), style=_STYLES[state.state]) if state else Text("") for state in found]
            table.add_row(Text(row), *shown)
        return table

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_grid_display(console: Console, cells: Sequence[Cell]) -> Watcher:
    return LiveGrid(console, cells) if console.is_terminal else PlainGrid(console, cells)
