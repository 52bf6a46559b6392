"""One cell of a grid as its parent sees it: a run that it started, one that runs elsewhere, or a finished folder."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from filelock import FileLock, Timeout

from ccl.errors import UserError
from ccl.loading import dump_settings, load_settings
from ccl.report import RunRecord, read_run
from ccl.report.measures import all_classes
from ccl.run_files import METRICS, PROTOCOL, SETTINGS, is_finished, read_status
from ccl.runs.folder_lock import LOCK
from ccl.runs.grid_cells import Cell

CELLS, LOGS = "cells", "logs"  # folders beside the cells' own: the settings and the output of each
_USER_ERROR = 2  # the exit code of a refusal
_REFUSED_BY_LOCK = "is in use by"  # what `ccl run` says of a folder that another process holds
_TAIL = 16_384  # bytes at the end of metrics.jsonl; the longest row, of a probe over a hundred steps, has 5,000
_LINES_SHOWN = 2  # of a failed run's output


@dataclass(frozen=True)
class CellState:
    """A cell at one look."""

    state: Literal["waiting", "running", "elsewhere", "complete", "failed"]
    share: float  # of its training that is done
    accuracy: float | None = None  # over all classes after the last step, in percent; None where not measured


@dataclass(frozen=True)
class Failure:
    """Why a cell has no outcome, and where the whole output of its run is."""

    cell: Cell
    reason: str
    log: Path


def start_run(settings_file: Path, folder: Path, log: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start `ccl run SETTINGS_FILE --out FOLDER` and return at once; its output is appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ccl", "run", str(settings_file), "--out", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # a Ctrl-C in the terminal reaches it through its parent only, once
        )


class CellRun:
    """What is known of a cell, and its process if it was started here."""

    def __init__(self, cell: Cell, grid_folder: Path) -> None:
        self.cell = cell
        self.folder = grid_folder / cell.name
        self.log = grid_folder / LOGS / f"{cell.name}.txt"
        self.record: RunRecord | None = None
        self.failure: Failure | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._settings_file = grid_folder / CELLS / f"{cell.name}.yaml"
        self._is_elsewhere = False
        self._log_start = 0  # where in the log the words of this attempt begin

    @property
    def is_settled(self) -> bool:
        return self.record is not None or self.failure is not None

    @property
    def is_waiting(self) -> bool:
        return not self.is_settled and self.process is None and not self._is_elsewhere

    def state(self) -> CellState:
        """For display."""
        if self.record is not None:
            accuracy = all_classes(self.record)
            return CellState("complete", 1.0, None if math.isnan(accuracy) else accuracy)
        share = share_done(self.folder, self.cell.settings.epochs)
        if self.failure is not None:
            return CellState("failed", share)
        if self.process is not None:
            return CellState("running", share)
        return CellState("elsewhere" if self._is_elsewhere else "waiting", share)

    def look(self) -> None:
        """Take notice of what has happened to it, through its own process or through others."""
        if self.process is None:
            if read_status(self.folder).get("state") == "complete":
                self._read()
            if not self.is_settled:
                self._is_elsewhere = is_held(self.folder)
        elif (exit_code := self.process.poll()) is not None:
            self.process = None
            self._judge(exit_code)

    def start(self, threads: int) -> None:
        """Begin or resume the run; `threads` where the settings name no number."""
        settings = self.cell.settings
        threads = settings.threads or self._threads_before() or threads
        unfinished = self._settings_file.with_suffix(f".{uuid4().hex}.part")  # other parents write here too
        unfinished.write_text(dump_settings(settings.model_copy(update={"threads": threads})), encoding="utf-8")
        os.replace(unfinished, self._settings_file)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = start_run(self._settings_file, self.folder, self.log, threads)

    def _threads_before(self) -> int | None:
        """A resumed run keeps its number of threads, as its last bits depend on it."""
        path = self.folder / SETTINGS
        return load_settings(str(path)).threads if path.is_file() else None

    def _judge(self, exit_code: int) -> None:
        """What the end of its process means; a complete run stays one, whatever happened to its page afterwards."""
        self._read()
        if self.is_settled:
            return
        words = self._words()
        if exit_code == _USER_ERROR and any(_REFUSED_BY_LOCK in line for line in words):
            self._is_elsewhere = True  # another process was faster; the next look shows whether it still has it
            return
        how = (
            f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
            if exit_code < 0
            else f"exit code {exit_code}"
        )
        self.failure = Failure(self.cell, "\n".join([how, *words[-_LINES_SHOWN:]]), self.log)

    def _read(self) -> None:
        try:
            if is_finished(self.cell.settings, self.folder):
                self.record = read_run(self.folder)
        except UserError as error:
            self.failure = Failure(self.cell, str(error), self.log)

    def _words(self) -> list[str]:
        """The lines that this attempt wrote."""
        if not self.log.exists():  # not every way of starting a run writes before it fails
            return []
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]


def is_held(folder: Path) -> bool:
    """Whether a living process, here or on another machine, has the run folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # the lock can't be opened at all: the run itself will report why
        return False


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
