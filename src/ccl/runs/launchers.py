"""What starts runs, commands of ccl that resume: here as child processes, or elsewhere (`ccl.runs.slurm`)."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Results(Protocol):
    """What a run leaves on disk, which decides where nobody can say what became of its process."""

    @property
    def saved(self) -> Path:
        """The folder in which a new name stands for work that is not done again."""
        ...

    def is_complete(self) -> bool: ...

    def is_held(self) -> bool:
        """Whether a living process, here or on another machine, is at it."""
        ...


@dataclass(frozen=True)
class RunRequest:
    """A command of ccl that is to be run; the same command again does what is missing."""

    name: str  # of a file, and unlike the others of its launcher
    command: Sequence[str]  # the words behind `ccl`; paths are absolute where it may start elsewhere
    log: Path  # to which its output is appended
    results: Results
    threads: int | None = None  # None: as many as there are cores where it starts
    # Where `--set threads=N` is to name that number: settings files, of which the first that has one decides instead.
    settings_files: Sequence[Path] = ()


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

    def open(self, note: Callable[[str], None]) -> None:
        """Refuse what can't work; `note` reports from then on."""
        ...

    def under_way(self, requests: Iterable[RunRequest]) -> Mapping[str, StartedRun]:
        """Those of these runs that earlier commands have started, by name."""
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

    def open(self, note: Callable[[str], None]) -> None:
        """Child processes always work."""

    def under_way(self, requests: Iterable[RunRequest]) -> Mapping[str, StartedRun]:
        """Children of a command that is gone are found by the locks of their folders."""
        return {}

    def start(self, requests: Iterable[RunRequest]) -> Iterator[tuple[str, StartedRun]]:
        for request in requests:
            yield request.name, start_run(request)


def start_run(request: RunRequest) -> LocalRun:
    """Start its command and return at once."""
    with request.log.open("ab") as output:
        return LocalRun(
            [sys.executable, "-m", "ccl", *request.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ({} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)}),
            start_new_session=True,  # a Ctrl-C in the terminal reaches it through its parent only, once
        )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
