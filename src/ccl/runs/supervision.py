"""Runs that are started, watched and, by a signal, ended together, whatever they do and wherever they run."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ccl.runs.launchers import Launcher, RunRequest, StartedRun
from ccl.training.stop_signals import StopRequest

_LINES_SHOWN = 2  # of a failed run's output


class Supervised(Protocol):
    """A run as its parent sees it."""

    process: StartedRun | None  # that was started for it

    @property
    def name(self) -> str: ...

    @property
    def is_settled(self) -> bool:
        """Whether it is complete or has failed."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be started."""
        ...

    def look(self) -> None:
        """Take notice of what has happened to it, through its own process or through others."""
        ...

    def request(self, threads: int | None) -> RunRequest:
        """What is to be started."""
        ...


class Notes(Protocol):
    """What shows runs to a person."""

    def note(self, text: str) -> None:
        """One line worth knowing."""
        ...

    def close(self) -> None: ...


Run = TypeVar("Run", bound=Supervised)


def supervise(runs: Sequence[Run], jobs: int, launcher: Launcher, notes: Notes, show: Callable[[], None]) -> None:
    """Start what waits, at most `jobs` at once, and `show` at every look, until all are settled.

    A signal is passed on; once all runs have saved their state and ended, StoppedError is raised. With a launcher that
    is detached, runs are only started.
    """
    with StopRequest() as stop:
        stop.is_immediate = False
        try:
            while True:
                _look(runs, jobs, launcher)
                show()
                is_over = launcher.is_detached or all(run.is_settled for run in runs)
                if stop.signal_number is not None or is_over:
                    break
                time.sleep(launcher.seconds_between_looks)
        finally:  # also when something fails here: no run is left without a parent by our own fault
            _end([] if launcher.is_detached else runs, notes)
        stop.raise_if_asked()


def _look(runs: Sequence[Run], jobs: int, launcher: Launcher) -> None:
    """Take notice of what has ended, and start what may be started."""
    for run in runs:
        if not run.is_settled:
            run.look()
    free = jobs - sum(run.process is not None for run in runs)
    waiting = [run for run in runs if run.is_waiting]
    chosen = {run.name: run for run in waiting[: max(0, free)]}
    requests = (run.request(launcher.threads(jobs)) for run in chosen.values())  # made when the launcher has room
    for name, process in launcher.start(requests):
        chosen[name].process = process


def _end(runs: Sequence[Run], notes: Notes) -> None:
    """Ask all runs at once, then wait for each: they finish their batch and save."""
    processes = [run.process for run in runs if run.process is not None]
    for process in processes:
        process.terminate()
    notes.close()  # only now: it may be what failed, when nobody reads the output any more
    if processes:
        notes.note(f"runs under way save their state and end: {len(processes)}")
    for process in processes:
        process.wait()


class Output:
    """What a run writes to its log, attempt by attempt."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._start = 0  # where the words of this attempt begin

    def begin(self) -> None:
        """A new attempt follows."""
        self._start = self.log.stat().st_size if self.log.exists() else 0

    def lines(self) -> list[str]:
        """Of this attempt."""
        if not self.log.exists():  # not every way of starting a run writes before it fails
            return []
        with self.log.open("rb") as log:
            log.seek(self._start)
            text = log.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]


def why_failed(exit_code: int, lines: Sequence[str]) -> str:
    """The exit code, and below it the last lines of the output."""
    how = (
        f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)})" if exit_code < 0 else f"exit code {exit_code}"
    )
    return "\n".join([how, *lines[-_LINES_SHOWN:]])
