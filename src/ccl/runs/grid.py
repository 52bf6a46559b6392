"""A grid of runs, each a process or a job of its own: it resumes where it stopped, several may work on one folder."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ccl.atomic_files import write_file
from ccl.data import load_dataset
from ccl.data.cifar import LAYOUTS
from ccl.errors import UserError
from ccl.loading import dump_settings, read_settings
from ccl.runs.folder_lock import SETTINGS
from ccl.runs.grid_cells import Cell
from ccl.runs.jobs import Job, LocalJobs, LocalProcess, why_failed
from ccl.runs.run_folder import RunRecord, is_finished, read_run
from ccl.runs.slurm import SlurmJob, SlurmJobs
from ccl.training.stop_signals import StopRequest

_REFUSED_BY_LOCK = "is in use by"  # what `ccl run` says of a folder that another process holds
CELLS, LOGS = "cells", "logs"  # folders beside the cells' own: the settings and the output of each

Launcher = LocalJobs | SlurmJobs


@dataclass(frozen=True)
class CellState:
    """A cell at one look."""

    state: Literal["waiting", "queued", "running", "elsewhere", "complete", "failed"]
    share: float  # of its training that is done
    accuracy: float | None = None  # over all classes after the last step, in percent; None where not measured


@dataclass(frozen=True)
class GridOutcome:
    """The complete runs and the failed ones, in the order of the cells; how many are left to a detached launcher."""

    records: list[RunRecord]
    failures: "list[CellRun]"
    num_under_way: int = 0
    num_waiting: int = 0


class Watcher:
    """A display of a grid."""

    def note(self, text: str) -> None:
        """Show one line to the user."""

    def show(self, states: Mapping[str, CellState]) -> None:
        """Called at every look, with the state of each cell by its name."""

    def close(self) -> None:
        """Called when the grid has ended."""


class CellRun:
    """A cell, and its process or job if this grid has one of it."""

    def __init__(self, cell: Cell, grid: Path) -> None:
        self.cell, self.job = cell, cell_job(grid, cell.name)
        self.record: RunRecord | None = None
        self.reason: str | None = None  # why it has failed
        self.process: LocalProcess | SlurmJob | None = None
        self._is_elsewhere = False
        self._log_start = 0  # where the words of this attempt begin

    @property
    def is_settled(self) -> bool:
        return self.record is not None or self.reason is not None

    @property
    def is_waiting(self) -> bool:
        return not self.is_settled and self.process is None and not self._is_elsewhere

    def state(self) -> CellState:
        if self.record is not None:
            accuracy = self.record.all_classes
            return CellState("complete", 1.0, None if math.isnan(accuracy) else accuracy)
        share = self.job.share_done(self.cell.settings.epochs)
        if self.reason is not None:
            return CellState("failed", share)
        if self.process is not None:
            return CellState("queued" if self.process.is_queued else "running", share)
        return CellState("elsewhere" if self._is_elsewhere else "waiting", share)

    def look(self) -> None:
        """Update the cell's state from its folder and its process."""
        if self.process is None:
            if self.job.is_complete():
                self._read()
            if not self.is_settled:
                self._is_elsewhere = self.job.is_held()
        elif (exit_code := self.process.poll()) is not None:
            self.process = None
            self._read()  # a complete run stays one, whatever happened to its page afterwards
            lines = self.job.words_since(self._log_start)
            if not self.is_settled and any(_REFUSED_BY_LOCK in line for line in lines[-1:]):
                self._is_elsewhere = True  # another process was faster; the next look shows whether it still has it
            elif not self.is_settled:
                self.reason = why_failed(exit_code, lines)

    def prepare(self, threads: int | None) -> Job:
        """Write its settings, and describe the run that is to begin or to resume; `threads` where they name none."""
        path, settings = self.job.folder / SETTINGS, self.cell.settings
        # A resumed run keeps its number of threads, as its last bits depend on it.
        before = read_settings(path).threads if path.is_file() else None
        threads = settings.threads or before or threads
        write_file(self.job.settings, dump_settings(settings.model_copy(update={"threads": threads})))
        self._log_start = self.job.log_size()
        return replace(self.job, threads=threads)

    def _read(self) -> None:
        try:
            if is_finished(self.cell.settings, self.job.folder):
                self.record = read_run(self.job.folder)
        except UserError as error:
            self.reason = str(error)


def cell_job(grid: Path, name: str) -> Job:
    """The job of a cell, which runs once its settings are written."""
    grid = Path(os.path.abspath(grid))  # links stay: the machines of a cluster may not share what is behind
    return Job(name, grid / CELLS / f"{name}.yaml", grid / name, grid / LOGS / f"{name}.txt")


def run_grid(
    cells: Sequence[Cell], folder: Path, jobs: int | None, watcher: Watcher, launcher: Launcher | None = None
) -> GridOutcome:
    """Run all cells that are not complete, at most `jobs` at once; a failing one doesn't stop the others.

    A signal is passed on; once all runs have saved their state and ended, StoppedError is raised. With a launcher that
    is detached, runs are only started.
    """
    launcher = launcher or LocalJobs()
    unfinished = _unfinished(cells, folder)
    runs = {cell.name: CellRun(cell, folder) for cell in cells}
    jobs = max(1, min(jobs or launcher.num_at_once, len(unfinished)))
    if unfinished:
        launcher.open(watcher.note, jobs)
        under_way = launcher.under_way(runs[cell.name].job for cell in unfinished)
        _prepare(unfinished, folder, watcher)
        for name, process in under_way.items():
            runs[name].process = process
    _follow(list(runs.values()), jobs, launcher, watcher)
    return GridOutcome(
        [run.record for run in runs.values() if run.record is not None],
        [run for run in runs.values() if run.reason is not None],
        sum(run.process is not None for run in runs.values()),
        sum(run.is_waiting for run in runs.values()),
    )


def _follow(runs: Sequence[CellRun], jobs: int, launcher: Launcher, watcher: Watcher) -> None:
    """Look at the folders, start what is missing, show; until all are settled or a signal has come."""
    with StopRequest() as stop:
        stop.is_immediate = False
        try:
            while True:
                _look(runs, jobs, launcher)
                watcher.show({run.cell.name: run.state() for run in runs})
                is_over = launcher.is_detached or all(run.is_settled for run in runs)
                if stop.signal_number is not None or is_over:
                    break
                time.sleep(launcher.seconds_between_looks)
        finally:  # also when something fails here: no run is left without a parent by our own fault
            _end([] if launcher.is_detached else runs, watcher)
        stop.raise_if_asked()


def _look(runs: Sequence[CellRun], jobs: int, launcher: Launcher) -> None:
    for run in runs:
        if not run.is_settled:
            run.look()
    free = max(0, jobs - sum(run.process is not None for run in runs))
    chosen = {run.cell.name: run for run in [run for run in runs if run.is_waiting][:free]}
    prepared = (run.prepare(launcher.threads(jobs)) for run in chosen.values())  # when the launcher has room
    for name, process in launcher.start(prepared):
        chosen[name].process = process


def _end(runs: Sequence[CellRun], watcher: Watcher) -> None:
    """Signal all runs, then wait for each to finish its batch and save."""
    processes = [run.process for run in runs if run.process is not None]
    for process in processes:
        process.terminate()
    watcher.close()  # only now: it may be what failed, when nobody reads the output any more
    if processes:
        watcher.note(f"runs under way save their state and end: {len(processes)}")
    for process in processes:
        process.wait()


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
            # A run under way may be given other epochs; a complete one would stand in the tables with the wrong ones.
            then, now = read_settings(folder / cell.name / SETTINGS).epochs, cell.settings.epochs
            if then != now:
                other = f"complete with other settings (epochs: {then} -> {now})"
                conflicts.append(f"--out {folder / cell.name} is {other}; name another folder")
        except UserError as error:
            conflicts += str(error).splitlines()
    if conflicts:
        raise UserError(*conflicts)
    return unfinished


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
