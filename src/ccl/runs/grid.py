"""A grid of runs, each a process or a job of its own: it resumes where it stopped, several may work on one folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ccl.data import load_dataset
from ccl.data.cifar import LAYOUTS
from ccl.errors import UserError
from ccl.loading import read_settings
from ccl.run_files import SETTINGS, is_finished
from ccl.runs.cell_run import CELLS, LOGS, CellRun, CellState, Failure, cell_request
from ccl.runs.grid_cells import Cell
from ccl.runs.launchers import Launcher, LocalLauncher
from ccl.runs.run_folder import RunRecord
from ccl.runs.supervision import Notes, supervise

_MAX_SHOWN = 8  # conflicts; the others are counted


class Watcher(Notes, Protocol):
    """What shows a grid to a person."""

    def show(self, states: Mapping[str, CellState]) -> None:
        """Called at every look, with the state of each cell by its name."""
        ...


@dataclass(frozen=True)
class GridOutcome:
    """The complete runs and the failed ones, in the order of the cells; how many are left to a detached launcher."""

    records: list[RunRecord]
    failures: list[Failure]
    num_under_way: int = 0
    num_waiting: int = 0


def run_grid(
    cells: Sequence[Cell], folder: Path, jobs: int | None, watcher: Watcher, launcher: Launcher | None = None
) -> GridOutcome:
    """Run all cells that are not complete, at most `jobs` at once; a failing one doesn't stop the others.

    A signal is passed on; once all runs have saved their state and ended, StoppedError is raised. With a launcher that
    is detached, runs are only started.
    """
    launcher = launcher or LocalLauncher()
    unfinished = _unfinished(cells, folder)
    runs = [CellRun(cell, folder) for cell in cells]
    if unfinished:
        launcher.open(watcher.note)
        under_way = launcher.under_way(cell_request(folder, cell.name) for cell in unfinished)
        _prepare(unfinished, folder, watcher)
        for run in runs:
            run.process = under_way.get(run.name)
    jobs = max(1, min(jobs or launcher.num_at_once, len(unfinished)))
    supervise(runs, jobs, launcher, watcher, lambda: watcher.show({run.name: run.state() for run in runs}))
    return GridOutcome(
        [run.record for run in runs if run.record is not None],
        [run.failure for run in runs if run.failure is not None],
        sum(run.process is not None for run in runs),
        sum(run.is_waiting for run in runs),
    )


def _unfinished(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells with work left; all conflicts with what the folder holds are reported at once, before any start."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder")
    if (folder / SETTINGS).exists():
        raise UserError(f"--out {folder} holds a single run; name another folder for the grid")
    unfinished, conflicts = [], []
    for cell in cells:
        try:
            if not is_finished(cell.settings, folder / cell.name):
                unfinished.append(cell)
                continue
            _refuse_other_epochs(cell, folder / cell.name)
        except UserError as error:
            conflicts += str(error).splitlines()
    if conflicts:
        hidden = len(conflicts) - _MAX_SHOWN
        raise UserError("\n".join(conflicts[:_MAX_SHOWN] + ([f"and {hidden} more like these"] if hidden > 0 else [])))
    return unfinished


def _refuse_other_epochs(cell: Cell, folder: Path) -> None:
    """A run under way may be given other epochs; a complete one would stand in the tables with the wrong ones."""
    then, now = read_settings(folder / SETTINGS).epochs, cell.settings.epochs
    if then != now:
        raise UserError(
            f"--out {folder} is complete with other settings (epochs: {then} -> {now}); name another folder"
        )


def _prepare(unfinished: Sequence[Cell], folder: Path, watcher: Watcher) -> None:
    try:
        for name in (CELLS, LOGS):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder} can't be used: {error.strerror}") from None
    asked = [cell.settings for cell in unfinished if cell.settings.data.download]
    wanted = {(name, settings.data.root) for settings in asked for name in settings.dataset if name in LAYOUTS}
    for name, root in sorted(wanted, key=str):
        watcher.note(f"{name} is fetched if it is absent, once for all runs")
        load_dataset(name, root, download=True)
