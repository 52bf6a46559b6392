"""Slurm's own commands: sbatch, squeue, scancel and scontrol, and what they answer. No torch in here."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SECONDS_BETWEEN_QUESTIONS = 1.0  # however many jobs there are
_PATIENCE = 20.0  # seconds; where the queue is full, sbatch would sleep and try again for two minutes
_OVER = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT")
_QUEUED = re.compile("PENDING|CONFIGURING|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|RESV_DEL_HOLD|SPECIAL_EXIT")
_COLUMNS = {"JobArrayID": 40, "State": 24, "exit_code": 16, "Name": 200}  # and their widths; all else is cut off
_FULL = re.compile(r"SubmitJob|temporarily|queue full|MaxJobCount|did not answer", re.IGNORECASE)
_PREFIX = re.compile(r"^(sbatch|squeue|scancel|allocation failure): (error: |fatal: )?")


class SlurmError(Exception):
    """A command failed; the message is its own words in one line."""

    @property
    def is_full(self) -> bool:
        """Whether these are the words of a queue that takes no more jobs for now."""
        return _FULL.search(str(self)) is not None


@dataclass(frozen=True)
class JobState:
    """A job as squeue shows it."""

    state: str  # such as RUNNING
    status: int  # its exit status as `os.wait` gives it; 0 until it has ended
    name: str

    @property
    def is_over(self) -> bool:
        return _OVER.fullmatch(self.state) is not None

    @property
    def is_queued(self) -> bool:
        return _QUEUED.fullmatch(self.state) is not None

    @property
    def exit_code(self) -> int:
        """0 for success only, negative for a signal; what Slurm itself has ended may have no status of its own."""
        if self.status == 0:
            return 0 if self.state == "COMPLETED" else -signal.SIGTERM
        return os.waitstatus_to_exitcode(self.status)


def submit(options: Sequence[str], script: Sequence[str]) -> str:
    """Submit a script with its arguments; the id of the job."""
    return _call(["sbatch", "--parsable", *options, *script]).partition(";")[0].strip()


def try_options(options: Sequence[str], script: Sequence[str]) -> None:
    """Raise SlurmError where sbatch would refuse these options; nothing is submitted."""
    _call(["sbatch", "--test-only", *options, *script])


def cancel(job_id: str) -> None:
    """Running or waiting, it ends: SIGTERM first, SIGKILL after the KillWait of the cluster."""
    _call(["scancel", job_id])


def max_array_size() -> int:
    """The most jobs that an array may have on this cluster."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call(["scontrol", "show", "config"]), re.MULTILINE)
    return max(1, int(found[1]) - 1) if found else 1000


def list_jobs() -> dict[str, JobState]:
    """All jobs of this user that Slurm knows, also those that have ended a short while ago, by id (17 or 17_3)."""
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    answer = _call(["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--Format={columns}"])
    return dict(_parse(line) for line in answer.splitlines() if line.strip())


def _parse(line: str) -> tuple[str, JobState]:
    cells, start = [], 0
    for width in _COLUMNS.values():
        cells.append(line[start : start + width].strip())
        start += width
    job_id, state, status, name = cells
    return job_id, JobState(state, int(status) if status.isdigit() else 0, name)


class JobQueue:
    """What squeue last said, asked again when that is a second old, whoever asks."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._jobs: dict[str, JobState] = {}
        self._asked_at = -float("inf")
        self._answered_at = -float("inf")
        self._trouble = ""

    def find(self, job_id: str, since: float) -> tuple[JobState | None, bool]:
        """The job's state, None where Slurm doesn't list it, and whether that was asked after the moment `since`."""
        if time.monotonic() - self._asked_at >= SECONDS_BETWEEN_QUESTIONS:
            self._ask()
        return self._jobs.get(job_id), self._answered_at > since

    @property
    def is_answering(self) -> bool:
        """Whether squeue did, when it was last asked."""
        return not self._trouble

    def jobs(self) -> dict[str, JobState]:
        """As of now; raises SlurmError where Slurm does not answer."""
        time.sleep(max(0.0, self._asked_at + SECONDS_BETWEEN_QUESTIONS - time.monotonic()))
        self._asked_at = asked_at = time.monotonic()
        self._jobs = list_jobs()
        self._answered_at = asked_at
        return self._jobs

    def _ask(self) -> None:
        """Where Slurm does not answer, what it last said stays: a controller that restarts has lost no job."""
        try:
            self.jobs()
            self._trouble = ""
        except SlurmError as error:
            if not self._trouble:
                self._note(f"{error}; asked again until Slurm answers")
            self._trouble = str(error)


def _call(words: Sequence[str]) -> str:
    try:
        answer = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            start_new_session=True,  # a Ctrl-C in the terminal must not cut off a submission
        )
    except subprocess.TimeoutExpired as error:
        told = (error.stderr or b"").decode(errors="replace")
        raise SlurmError(_in_one_line(words[0], told) or f"{words[0]} did not answer in {_PATIENCE:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}") from None
    if answer.returncode != 0:
        raise SlurmError(_in_one_line(words[0], answer.stderr) or f"{words[0]}: exit code {answer.returncode}")
    return answer.stdout


def _in_one_line(command: str, told: str) -> str:
    """What a command wrote as an error, without its prefixes and its advice to read its help."""
    lines = [_PREFIX.sub("", line.strip()).rstrip(".") for line in told.splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not line.startswith("Try "))
    return f"{command}: {'; '.join(kept)}" if kept else ""
