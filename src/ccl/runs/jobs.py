"""Jobs: runs that resume, each with a folder that tells what has become of it; here as child processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ccl.errors import UserError
from ccl.runs.folder_lock import is_held, read_status
from ccl.runs.run_folder import METRICS, PROTOCOL

_LINES_SHOWN = 2  # of a failed job's output


@dataclass(frozen=True)
class Job:
    """`ccl run` on a run folder; the same command again does what is missing. Paths are absolute."""

    name: str  # of a file, and unlike the others beside it
    settings: Path  # the file that is run
    folder: Path  # its lock, status and rows are all that is known of it
    log: Path  # to which its output is appended
    threads: int | None = None  # None: as many as there are cores where it starts

    @property
    def command(self) -> list[str]:
        """The words behind `ccl`."""
        return ["run", str(self.settings), "--out", str(self.folder)]

    def is_complete(self) -> bool:
        with suppress(UserError):  # of a damaged one the run itself says what is wrong
            return read_status(self.folder).get("state") == "complete"
        return False

    def is_held(self) -> bool:
        """Whether a living process, here or on another machine, works on it."""
        return is_held(self.folder)

    def share_done(self, epochs: int) -> float:
        """The share of all epochs that are done, by the last row of one.

        Not by status.json, which has no epoch between the start of a resumed run and the end of its next epoch.
        """
        try:
            protocol = json.loads((self.folder / PROTOCOL).read_text(encoding="utf-8"))
            lines = (self.folder / METRICS).read_bytes().splitlines()
            whole = (line for line in reversed(lines) if line.startswith(b'{"kind": "epoch"') and line.endswith(b"}"))
            row = json.loads(next(whole))
            num_steps = 1 if protocol["all_at_once"] else len(protocol["steps"])
            done = (row["step"] - 1) * epochs + row["epoch"]
            return min(1.0, float(done / (num_steps * epochs)))
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, StopIteration):
            return 0.0

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def words_since(self, start: int) -> list[str]:
        """The lines of its log from this byte on: not every way of starting it writes before it fails."""
        text = self.log.read_bytes()[start:].decode(errors="replace") if self.log.exists() else ""
        return [line.strip() for line in text.splitlines() if line.strip()]


def why_failed(exit_code: int, lines: Sequence[str]) -> str:
    """The exit code, and below it the last lines of the output."""
    how = (
        f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)})" if exit_code < 0 else f"exit code {exit_code}"
    )
    return "\n".join([how, *lines[-_LINES_SHOWN:]])


class LocalProcess(subprocess.Popen[bytes]):
    """A job as a child process."""

    is_queued = False


class LocalJobs:
    """Starts jobs here; each is a child process."""

    is_detached = False  # jobs are waited for
    seconds_between_looks = 0.3

    @property
    def num_at_once(self) -> int:
        """The default number of jobs at once."""
        return num_cores()

    def threads(self, num_at_once: int) -> int:
        """Threads of each job, where its settings name no number."""
        return max(1, num_cores() // num_at_once)

    def open(self, note: Callable[[str], None], num_at_once: int) -> None:
        """Nothing to check: child processes need no options."""

    def under_way(self, jobs: Iterable[Job]) -> dict[str, LocalProcess]:
        """Children of a command that is gone are found by the locks of their folders."""
        return {}

    def start(self, jobs: Iterable[Job]) -> Iterator[tuple[str, LocalProcess]]:
        """Start jobs, and give each as soon as it is started."""
        for job in jobs:
            yield job.name, start_local(job)


def start_local(job: Job) -> LocalProcess:
    """Start its command and return at once."""
    with job.log.open("ab") as output:
        return LocalProcess(
            [sys.executable, "-P", "-m", "ccl", *job.command],  # -P: nothing is imported from the working directory
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ({} if job.threads is None else {"OMP_NUM_THREADS": str(job.threads)}),
            start_new_session=True,  # a Ctrl-C in the terminal reaches it through its parent only, once
        )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
