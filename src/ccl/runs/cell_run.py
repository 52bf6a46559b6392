"""One cell of a grid as its parent sees it: a run that it started, one that runs elsewhere, or a finished folder."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ccl.errors import UserError
from ccl.loading import dump_settings, read_settings
from ccl.run_files import CHECKPOINTS, METRICS, PROTOCOL, SETTINGS, is_finished, read_status
from ccl.runs.folder_lock import is_held
from ccl.runs.grid_cells import Cell
from ccl.runs.launchers import RunRequest, StartedRun
from ccl.runs.run_folder import RunRecord, read_run
from ccl.runs.supervision import Output, why_failed

_USER_ERROR = 2  # the exit code of a refusal
_REFUSED_BY_LOCK = "is in use by"  # what `ccl run` says of a folder that another process holds
_TAIL = 16_384  # bytes at the end of metrics.jsonl; the longest row, of a probe over a hundred steps, has 5,000
# Folders beside the cells' own: the settings and the output of each.
CELLS, LOGS = "cells", "logs"


@dataclass(frozen=True)
class CellState:
    """A cell at one look."""

    state: Literal["waiting", "queued", "running", "elsewhere", "complete", "failed"]
    share: float  # of its training that is done
    accuracy: float | None = None  # over all classes after the last step, in percent; None where not measured


@dataclass(frozen=True)
class Failure:
    """Why a cell has no outcome, and where the whole output of its run is."""

    cell: Cell
    reason: str
    log: Path


@dataclass(frozen=True)
class RunFolder:
    """What `ccl run` leaves."""

    folder: Path

    @property
    def saved(self) -> Path:
        return self.folder / CHECKPOINTS

    def is_complete(self) -> bool:
        return read_status(self.folder).get("state") == "complete"

    def is_held(self) -> bool:
        return is_held(self.folder)


def settings_file(grid: Path, name: str) -> Path:
    """Where the settings of a cell are written for its run."""
    return grid / CELLS / f"{name}.yaml"


def cell_request(grid: Path, name: str, threads: int | None = None) -> RunRequest:
    """A cell that is to be run, once its settings are written."""
    grid = Path(os.path.abspath(grid))  # links stay: the machines of a cluster may not share what is behind
    settings, folder = settings_file(grid, name), grid / name
    words = ["run", str(settings), "--out", str(folder)]
    log = grid / LOGS / f"{name}.txt"
    # A resumed run keeps its number of threads, as its last bits depend on it.
    return RunRequest(name, words, log, RunFolder(folder), threads, (settings, folder / SETTINGS))


class CellRun:
    """What is known of a cell, and its process or job if this grid started it."""

    def __init__(self, cell: Cell, grid_folder: Path) -> None:
        self.cell = cell
        self.folder = grid_folder / cell.name
        self.log = grid_folder / LOGS / f"{cell.name}.txt"
        self.record: RunRecord | None = None
        self.failure: Failure | None = None
        self.process: StartedRun | None = None
        self._grid_folder = grid_folder
        self._is_elsewhere = False
        self._results, self._output = RunFolder(self.folder), Output(self.log)

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def is_settled(self) -> bool:
        return self.record is not None or self.failure is not None

    @property
    def is_waiting(self) -> bool:
        return not self.is_settled and self.process is None and not self._is_elsewhere

    def state(self) -> CellState:
        """For display."""
        if self.record is not None:
            accuracy = self.record.all_classes
            return CellState("complete", 1.0, None if math.isnan(accuracy) else accuracy)
        share = share_done(self.folder, self.cell.settings.epochs)
        if self.failure is not None:
            return CellState("failed", share)
        if self.process is not None:
            return CellState("queued" if self.process.is_queued else "running", share)
        return CellState("elsewhere" if self._is_elsewhere else "waiting", share)

    def look(self) -> None:
        """Take notice of what has happened to it, through its own process or through others."""
        if self.process is None:
            if self._results.is_complete():
                self._read()
            if not self.is_settled:
                self._is_elsewhere = self._results.is_held()
        elif (exit_code := self.process.poll()) is not None:
            self.process = None
            self._judge(exit_code)

    def request(self, threads: int | None) -> RunRequest:
        """Write its settings, and describe the run that is to begin or to resume; `threads` where they name none."""
        settings = self.cell.settings
        threads = settings.threads or self._threads_before() or threads
        path = settings_file(self._grid_folder, self.name)
        unfinished = path.with_suffix(f".{uuid4().hex}.part")  # other parents write here too
        unfinished.write_text(dump_settings(settings.model_copy(update={"threads": threads})), encoding="utf-8")
        os.replace(unfinished, path)
        self._output.begin()
        return cell_request(self._grid_folder, self.name, threads)

    def _threads_before(self) -> int | None:
        """A resumed run keeps its number of threads, as its last bits depend on it."""
        path = self.folder / SETTINGS
        return read_settings(path).threads if path.is_file() else None

    def _judge(self, exit_code: int) -> None:
        """What the end of its process means; a complete run stays one, whatever happened to its page afterwards."""
        self._read()
        if self.is_settled:
            return
        lines = self._output.lines()
        if exit_code == _USER_ERROR and any(_REFUSED_BY_LOCK in line for line in lines):
            self._is_elsewhere = True  # another process was faster; the next look shows whether it still has it
            return
        self.failure = Failure(self.cell, why_failed(exit_code, lines), self.log)

    def _read(self) -> None:
        try:
            if is_finished(self.cell.settings, self.folder):
                self.record = read_run(self.folder)
        except UserError as error:
            self.failure = Failure(self.cell, str(error), self.log)


def share_done(folder: Path, epochs: int) -> float:
    """The share of all epochs that are done, by the last row of one.

    Not by status.json, which has no epoch between the start of a resumed run and the end of its next epoch.
    """
    row = _last_epoch(folder)
    try:
        protocol = json.loads((folder / PROTOCOL).read_text(encoding="utf-8"))
        num_steps = 1 if protocol["all_at_once"] else len(protocol["steps"])
        return min(1.0, ((row["step"] - 1) * epochs + row["epoch"]) / (num_steps * epochs)) if row else 0.0
    except (OSError, ValueError, KeyError):
        return 0.0


def _last_epoch(folder: Path) -> dict[str, Any] | None:
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:  # half a row, at either end
            continue
        if isinstance(row, dict) and row.get("kind") == "epoch":
            return row
    return None
