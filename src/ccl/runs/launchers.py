"""What starts the runs of a grid: here as child processes, or elsewhere (`ccl.runs.slurm`)."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Folders beside the cells' own: the settings and the output of each, and first steps that they share.
CELLS, LOGS, FIRST_STEPS = "cells", "logs", "first-steps"


@dataclass(frozen=True)
class RunRequest:
    """A cell that is to be run: where its files are below the grid's folder. `slurm_job.sh` knows these places too."""

    grid: Path
    name: str
    threads: int | None = None  # None: as many as there are cores where it starts

    @property
    def settings_file(self) -> Path:
        return self.grid / CELLS / f"{self.name}.yaml"

    @property
    def folder(self) -> Path:
        return self.grid / self.name

    @property
    def first_steps(self) -> Path:
        return self.grid / FIRST_STEPS

    @property
    def log(self) -> Path:
        return self.grid / LOGS / f"{self.name}.txt"


class StartedRun(Protocol):
    """A run that was started; the face of `subprocess.Popen`."""

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a machine."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None until it has ended."""
        ...

    def terminate(self) -> None:
        """Ask it to save its state and end."""
        ...

    def wait(self) -> int: ...


class Launcher(Protocol):
    """Starts runs."""

    is_detached: bool  # runs are started, not waited for
    seconds_between_looks: float

    @property
    def num_at_once(self) -> int:
        """Runs at once where nothing else is asked for."""
        ...

    def threads(self, jobs: int) -> int | None:
        """Of each run, where its settings name no number and `jobs` run at once."""
        ...

    def open(self, note: Callable[[str], None]) -> Mapping[str, StartedRun]:
        """Refuse what can't work, and return the runs under way of earlier commands, by cell; `note` reports."""
        ...

    def start(self, requests: Iterable[RunRequest]) -> Iterator[tuple[str, StartedRun]]:
        """Start runs and return at once, each as soon as it is started; fewer where there is no room for more."""
        ...


class LocalRun(subprocess.Popen[bytes]):
    """A child process."""

    is_queued = False


class LocalLauncher:
    """Each run is a child process; its output is appended to the log."""

    is_detached = False
    seconds_between_looks = 0.3

    @property
    def num_at_once(self) -> int:
        return num_cores()

    def threads(self, jobs: int) -> int:
        return max(1, num_cores() // jobs)

    def open(self, note: Callable[[str], None]) -> Mapping[str, StartedRun]:
        """Children of a command that is gone are found by the locks of their folders."""
        return {}

    def start(self, requests: Iterable[RunRequest]) -> Iterator[tuple[str, StartedRun]]:
        for request in requests:
            yield request.name, start_run(request)


def start_run(request: RunRequest) -> LocalRun:
    """Start `ccl run SETTINGS_FILE --out FOLDER --first-steps …` and return at once."""
    words = [str(request.settings_file), "--out", str(request.folder), "--first-steps", str(request.first_steps)]
    with request.log.open("ab") as output:
        return LocalRun(
            [sys.executable, "-m", "ccl", "run", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ({} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)}),
            start_new_session=True,  # a Ctrl-C in the terminal reaches it through its parent only, once
        )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
