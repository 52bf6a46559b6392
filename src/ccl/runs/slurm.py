"""Jobs of a Slurm cluster: submitted by plain sbatch, followed by squeue and the jobs' folders, found again later.

What was submitted stands as files in the folder `slurm` beside the runs, each written before sbatch is called and named
as its job, which is a name unlike any other: so that even a command that is killed in between loses none. That two jobs
are at one run does no harm: its folder has a lock.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

from ccl.atomic_files import make_folder, write_file
from ccl.errors import UserError
from ccl.runs.folder_lock import LOCK, SETTINGS
from ccl.runs.jobs import Job
from ccl.runs.run_folder import CHECKPOINTS

ARRAY_FROM = 101  # jobs submitted together: fewer are jobs of their own
SECONDS_BEFORE_RETRY = 30.0  # where the queue is full
SECONDS_BETWEEN_QUESTIONS = 1.0  # to squeue, however many jobs there are
PATIENCE = 30.0  # seconds: a network disk may show late what a job has written
_ANSWER_WITHIN = 20.0  # seconds; where the queue is full, sbatch would sleep and try again for two minutes
_SCRIPT = Path(__file__).with_name("slurm_job.sh")
# The job is put back into the queue when its node fails, and by itself when its time is up; --slurm may say otherwise.
_DEFAULTS = ("--requeue", "--signal=B:USR1@120")
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_FULL = re.compile(r"SubmitJob|temporarily|queue full|MaxJobCount|did not answer", re.IGNORECASE)
_PREFIX = re.compile(r"^(sbatch|squeue|scancel|allocation failure): (error: |fatal: )?")


class SlurmError(Exception):
    """A command failed; the message is its own words in one line."""

    @property
    def is_full(self) -> bool:
        """Whether these are the words of a queue that takes no more jobs for now."""
        return _FULL.search(str(self)) is not None


class JobQueue:
    """The jobs of this user that wait or run, as squeue last said; asked again when that is a second old."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._states: dict[str, str] = {}
        self._asked_at = -float("inf")
        self._is_answering = True

    def states(self, since: float) -> dict[str, str] | None:
        """By job id (17 or 17_3); None where Slurm was not asked after the moment `since`, or does not answer."""
        if time.monotonic() - self._asked_at >= SECONDS_BETWEEN_QUESTIONS:
            try:
                self.names()
            except SlurmError as error:
                if self._is_answering:
                    self._note(f"{error}; asked again until Slurm answers")
                self._is_answering = False
        return self._states if self._is_answering and self._asked_at > since else None

    def names(self) -> dict[str, str]:
        """The names of the jobs as of now, by id; raises SlurmError where Slurm does not answer."""
        time.sleep(max(0.0, self._asked_at + SECONDS_BETWEEN_QUESTIONS - time.monotonic()))
        self._asked_at = time.monotonic()
        answer = call("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T|%j")
        jobs = [line.strip().split("|", 2) for line in answer.splitlines() if line.strip()]
        self._states, self._is_answering = {job_id: state for job_id, state, _ in jobs}, True
        return {job_id: name for job_id, _, name in jobs}


class SlurmJob:
    """A job with its id; it has ended when Slurm does not list it and nobody holds its folder."""

    def __init__(self, job_id: str, job: Job, queue: JobQueue) -> None:
        self.job_id, self._job, self._queue = job_id, job, queue
        self._submitted_at = time.monotonic()
        self._gone_at: float | None = None
        self._is_cancelled = False
        self.is_queued = True

    def poll(self) -> int | None:
        """0 once its run is complete, 1 where it ended before that, None until then."""
        states = self._queue.states(self._submitted_at)
        if states is not None and self.job_id in states:
            self.is_queued, self._gone_at = states[self.job_id] in _QUEUED, None
            return None
        if self._job.is_complete():
            return 0
        if states is None or (not self._is_cancelled and self._job.is_held()):
            return None
        self._gone_at = self._gone_at or time.monotonic()
        if not self._is_cancelled and time.monotonic() < self._gone_at + PATIENCE:
            return None
        with self._job.log.open("a", encoding="utf-8") as log:
            log.write(f"Slurm job {self.job_id} has ended, and its run is not complete\n")
        return 1

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL after the KillWait of the cluster; one that does not answer is asked by `wait`."""
        try:
            call("scancel", self.job_id)
            self._is_cancelled = True
        except SlurmError:
            self._is_cancelled = False

    def wait(self) -> int:
        while (exit_code := self.poll()) is None:
            time.sleep(SECONDS_BETWEEN_QUESTIONS)
            if not self._is_cancelled:
                self.terminate()
        return exit_code


class SlurmJobs:
    """Starts jobs on the cluster with these options of sbatch; torchrun starts `nproc_per_node` processes on a node."""

    seconds_between_looks = 1.0
    num_at_once = 1_000_000  # Slurm decides

    def __init__(
        self,
        folder: Path,  # of the runs
        options: Sequence[str],
        nproc_per_node: int | None = None,
        *,
        is_detached: bool = False,
        at_once: int | None = None,  # where nobody is there to submit the next
    ) -> None:
        folder = Path(os.path.abspath(folder))  # links stay: machines may not share what is behind
        self._title, self._folder = folder.name, folder / "slurm"  # `slurm_job.sh` knows it too
        self._options = [*_DEFAULTS, *options]
        self._script = [str(_SCRIPT), sys.executable, str(folder), str(nproc_per_node or 0)]
        self.is_detached, self._at_once = is_detached, at_once
        self._known: set[str] = set()
        self._retry_at = 0.0
        self._is_full = False

    def threads(self, num_at_once: int) -> None:
        """None: a job uses the cores that it was given."""

    def open(self, note: Callable[[str], None], num_at_once: int) -> None:
        """Refuse options that sbatch would refuse, and more jobs than an array may have."""
        self._note, self._queue = note, JobQueue(note)
        try:
            call("sbatch", "--parsable", "--test-only", *self._options, *self._script, "cell")
            if self._is_array(num_at_once):
                config = call("scontrol", "show", "config")
                found = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
                most = int(found[1]) - 1 if found else 1000
                if num_at_once > most:
                    advice = f"give --jobs {most}, without --detach"
                    raise UserError(f"--on slurm: {num_at_once} runs are more than an array of it may have; {advice}")
        except SlurmError as error:
            if not error.is_full:
                raise UserError(f"--on slurm: {error}") from None

    def _is_array(self, count: int) -> bool:
        return count > 1 and (count >= ARRAY_FROM or count > (self._at_once or count))

    def under_way(self, jobs: Iterable[Job]) -> dict[str, SlurmJob]:
        """The jobs among these that earlier commands have submitted, by name."""
        if not any(self._folder.glob("ccl-*.json")):
            return {}
        try:
            with self._locked():
                return self._found({job.name: job for job in jobs})
        except SlurmError as error:
            raise UserError(f"--on slurm: {error}") from None

    def start(self, jobs: Iterable[Job]) -> Iterator[tuple[str, SlurmJob]]:
        """Submit jobs, and give each as soon as it is; fewer where the queue is full."""
        if time.monotonic() < self._retry_at:
            return
        asked = {job.name: job for job in jobs}
        if not asked:
            return
        with self._locked():
            try:
                found = self._found(asked)  # by another command in the meantime
                yield from found.items()
                left = [job for name, job in asked.items() if name not in found]
                for some in [left] if self._is_array(len(left)) else [[job] for job in left]:
                    yield from self._submit(some).items()
                self._is_full = False
            except SlurmError as error:
                self._retry_at = time.monotonic() + SECONDS_BEFORE_RETRY
                if not self._is_full:
                    again = "the same command submits the rest" if self.is_detached else "tried again until it does"
                    self._note(f"Slurm takes no more jobs for now ({error}); {again}")
                self._is_full = True

    def _submit(self, jobs: Sequence[Job]) -> dict[str, SlurmJob]:
        cells = [job.name for job in jobs]
        title = re.sub(r"[^A-Za-z0-9._=-]+", "_", cells[0] if len(cells) == 1 else self._title)
        name = f"ccl-{title[:100]}-{uuid4().hex[:8]}"
        for job in jobs:
            self._describe(job)
        file = self._folder / f"{name}.json"
        write_file(file, json.dumps({"cells": cells}))
        limit = f"%{self._at_once}" if self._at_once and self._at_once < len(jobs) else ""
        array = [f"--array=0-{len(jobs) - 1}{limit}"] if len(jobs) > 1 else []
        named = [f"--job-name={name}", "--output=/dev/null"]
        try:
            answer = call("sbatch", "--parsable", *self._options, *array, *named, *self._script, *cells)
            job_id = answer.partition(";")[0].strip()
        except SlurmError:  # a command cut off may have done its work
            job_id = next((one.partition("_")[0] for one, own in self._queue.names().items() if own == name), "")
            if not job_id:
                file.unlink(missing_ok=True)
                raise
        self._known.add(name)
        ids = [f"{job_id}_{index}" for index in range(len(jobs))] if array else [job_id]
        return {job.name: SlurmJob(one, job, self._queue) for job, one in zip(jobs, ids, strict=True)}

    def _found(self, jobs: Mapping[str, Job]) -> dict[str, SlurmJob]:
        """The jobs of these that stand in the folder and aren't known here yet; what is over is deleted."""
        files = [file for file in sorted(self._folder.glob("ccl-*.json")) if file.stem not in self._known]
        names = self._queue.names() if files else {}
        found: dict[str, SlurmJob] = {}
        for file in files:
            ids = [job_id for job_id, name in names.items() if name == file.stem]
            if not ids:
                file.unlink(missing_ok=True)
                continue
            self._known.add(file.stem)
            try:
                cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
                own = {job_id: str(cells[int(job_id.partition("_")[2] or 0)]) for job_id in ids}  # an array has several
            except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
                advice = f"scancel {ids[0].partition('_')[0]}, delete it, and give the same command again"
                raise UserError(f"{file} can't be read ({type(error).__name__}: {error}); {advice}") from None
            found |= {cell: SlurmJob(job_id, jobs[cell], self._queue) for job_id, cell in own.items() if cell in jobs}
        return found

    def _locked(self) -> FileLock:
        """To be held by who submits: the commands on one folder do so one after the other."""
        make_folder(self._folder)
        return FileLock(self._folder / LOCK)

    def _describe(self, job: Job) -> None:
        """Write what the job is to do, as words of bash."""
        lines = [
            f"LOG={shlex.quote(str(job.log))}",
            f"SAVED={shlex.quote(str(job.folder / CHECKPOINTS))}",
            f"COMMAND=({shlex.join(job.command)})",
            f"SETTINGS_FILES=({shlex.join([str(job.settings), str(job.folder / SETTINGS)])})",
        ]
        write_file(self._folder / f"{job.name}.sh", os.fsencode("\n".join([*lines, ""])))


def call(*words: str) -> str:
    """The output of a Slurm command; raises SlurmError with its own words in one line."""
    try:
        answer = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_WITHIN,
            start_new_session=True,  # a Ctrl-C in the terminal must not cut off a submission
        )
    except subprocess.TimeoutExpired as error:
        message = _in_one_line(words[0], (error.stderr or b"").decode(errors="replace"))
        raise SlurmError(message or f"{words[0]} did not answer in {_ANSWER_WITHIN:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}") from None
    if answer.returncode != 0:
        raise SlurmError(_in_one_line(words[0], answer.stderr) or f"{words[0]}: exit code {answer.returncode}")
    return answer.stdout


def _in_one_line(command: str, message: str) -> str:
    """A command's error in one line, without its prefixes and its advice to read its help."""
    lines = [_PREFIX.sub("", line.strip()).rstrip(".") for line in message.splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not line.startswith("Try "))
    return f"{command}: {'; '.join(kept)}" if kept else ""
