"""Runs as Slurm jobs: submitted by plain sbatch, found again when the command is reopened.

What a run writes bears that two jobs are at it: a run folder has a lock of its own, a part of features appears whole.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ccl.errors import UserError
from ccl.runs import slurm_commands
from ccl.runs.launchers import RunRequest, StartedRun
from ccl.runs.slurm_commands import JobQueue, JobState, SlurmError
from ccl.runs.slurm_submissions import Submission, Submissions, new_submission

ARRAY_FROM = 101  # runs submitted together: fewer are jobs of their own, unless asked for otherwise
SECONDS_BEFORE_RETRY = 30.0  # where the queue is full
_PATIENCE = 60.0  # seconds: a network disk may show late what a job has written
_SCRIPT = Path(__file__).with_name("slurm_job.sh")
# The job is put back into the queue when its node fails, and by itself when its time is up; --slurm may say otherwise.
_DEFAULTS = ("--requeue", "--signal=B:USR1@120")


class SlurmJob:
    """One run as a job; what has become of it says Slurm, or its results where Slurm has forgotten."""

    def __init__(self, job_id: str, request: RunRequest, queue: JobQueue) -> None:
        self.job_id, self._request, self._queue = job_id, request, queue
        self._submitted_at = time.monotonic()
        self._state: JobState | None = None
        self._is_cancelled = False
        self._ended_at: float | None = None
        self._exit_code: int | None = None

    @property
    def is_queued(self) -> bool:
        return self._state is None or self._state.is_queued

    def poll(self) -> int | None:
        if self._exit_code is None:
            found, is_fresh = self._queue.find(self.job_id, self._submitted_at)
            if found is not None and not found.is_over:
                self._state, self._ended_at = found, None
            elif is_fresh:
                self._exit_code = self._judge(found)
            if not self._queue.is_answering and self._request.results.is_complete():
                self._exit_code = 0
        return self._exit_code

    def terminate(self) -> None:
        """A controller that does not answer is asked again by `wait`."""
        try:
            slurm_commands.cancel(self.job_id)
            self._is_cancelled = True
        except SlurmError:
            self._is_cancelled = False

    def wait(self) -> int:
        while (exit_code := self.poll()) is None:
            time.sleep(slurm_commands.SECONDS_BETWEEN_QUESTIONS)
            if not self._is_cancelled:
                self.terminate()
        return exit_code

    def _judge(self, found: JobState | None) -> int | None:
        """The exit code of a job that is over, or that Slurm doesn't know any more."""
        if self._request.results.is_complete():
            return 0
        self._ended_at = self._ended_at or time.monotonic()
        is_late = not self._is_cancelled and time.monotonic() < self._ended_at + _PATIENCE
        if found is None:
            if self._request.results.is_held() and not self._is_cancelled:
                return None
            return self._report("is not known to Slurm any more, and its run is not complete")
        if found.exit_code == 0:
            return None if is_late else self._report("ended with success, but its results are not complete")
        return found.exit_code if found.state == "FAILED" else self._report(f"ended as {found.state}", found.exit_code)

    def _report(self, words: str, exit_code: int = 1) -> int:
        """In the log, as its end is what a failed run shows."""
        with self._request.log.open("a", encoding="utf-8") as log:
            log.write(f"Slurm job {self.job_id} {words}\n")
        return exit_code


class SlurmLauncher:
    """Each run is a job with these options of sbatch; `nproc_per_node` processes by torchrun on each of its nodes."""

    seconds_between_looks = 1.0
    num_at_once = 1_000_000  # Slurm decides

    def __init__(
        self,
        folder: Path,  # of the runs: what was submitted is kept in it
        options: Sequence[str],
        nproc_per_node: int | None = None,
        *,
        is_detached: bool = False,
        at_once: int | None = None,  # where nobody is there to submit the next
        array_from: int | None = None,
    ) -> None:
        self._folder = Path(os.path.abspath(folder))  # links stay: machines may not share what is behind
        self._options = [*_DEFAULTS, *options]
        self._script = [str(_SCRIPT), sys.executable, str(self._folder), str(nproc_per_node or 0)]
        self.is_detached, self._at_once = is_detached, at_once
        self._array_from = array_from or ARRAY_FROM
        self._submissions = Submissions(self._folder)
        self._known: set[str] = set()
        self._retry_at = 0.0
        self._is_full = False

    def threads(self, jobs: int) -> None:
        """The job decides, by the cores that it was given."""

    def open(self, note: Callable[[str], None]) -> None:
        self._note, self._queue = note, JobQueue(note)
        try:
            slurm_commands.try_options(self._options, [*self._script, "cell"])
        except SlurmError as error:
            if not error.is_full:
                raise UserError(f"--on slurm: {error}") from None

    def under_way(self, requests: Iterable[RunRequest]) -> Mapping[str, StartedRun]:
        if not self._submissions.read():
            return {}
        try:
            with self._submissions.locked():
                return self._under_way({request.name: request for request in requests})
        except SlurmError as error:
            raise UserError(f"--on slurm: {error}") from None

    def start(self, requests: Iterable[RunRequest]) -> Iterator[tuple[str, StartedRun]]:
        if time.monotonic() < self._retry_at:
            return
        asked = {request.name: request for request in requests}
        if not asked:
            return
        with self._submissions.locked():
            try:
                found = self._under_way(asked)  # by another command in the meantime
                yield from found.items()
                for some, options in self._parts([asked[name] for name in asked if name not in found]):
                    yield from self._submit(some, options).items()
                self._is_full = False
            except SlurmError as error:
                self._wait_for_room(error)

    def _wait_for_room(self, error: SlurmError) -> None:
        self._retry_at = time.monotonic() + SECONDS_BEFORE_RETRY
        if not self._is_full:
            again = "the same command submits the rest" if self.is_detached else "tried again until it does"
            self._note(f"Slurm takes no more jobs for now ({error}); {again}")
        self._is_full = True

    def _parts(self, requests: Sequence[RunRequest]) -> Iterator[tuple[Sequence[RunRequest], Sequence[str]]]:
        """What one call of sbatch submits, with its options."""
        at_once = self._at_once or len(requests)
        if len(requests) < self._array_from and len(requests) <= at_once:
            yield from (([request], []) for request in requests)
            return
        size = slurm_commands.max_array_size()
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        for part in parts:
            limit = f"%{max(1, at_once // len(parts))}" if at_once < len(requests) else ""
            yield part, [f"--array=0-{len(part) - 1}{limit}"] if len(part) > 1 else []

    def _submit(self, requests: Sequence[RunRequest], options: Sequence[str]) -> dict[str, SlurmJob]:
        submission = new_submission([request.name for request in requests], self._folder)
        for request in requests:
            self._submissions.describe(request)
        self._submissions.write(submission)
        words = [*self._options, *options, f"--job-name={submission.name}", "--output=/dev/null"]
        try:
            job: str | None = slurm_commands.submit(words, [*self._script, *submission.cells])
        except SlurmError:
            job = submission.job_among(self._queue.jobs())  # a command that was cut off may have done its work
            if job is None:
                self._submissions.delete(submission)
                raise
        self._take(submission := replace(submission, job=job))
        ids = submission.job_ids()
        return {request.name: SlurmJob(ids[request.name], request, self._queue) for request in requests}

    def _under_way(self, requests: Mapping[str, RunRequest]) -> dict[str, SlurmJob]:
        """The jobs of these runs that stand in the folder and aren't known here yet; what is over is deleted."""
        new = [submission for submission in self._submissions.read() if submission.name not in self._known]
        jobs = self._queue.jobs() if new else {}
        found: dict[str, SlurmJob] = {}
        for submission in new:
            submission = replace(submission, job=submission.job_among(jobs))
            # By name too: a cluster that was set up anew counts its jobs from one again.
            own = {job_id for job_id, job in jobs.items() if job.name == submission.name and not job.is_over}
            alive = {name: job_id for name, job_id in submission.job_ids().items() if job_id in own}
            if alive:
                self._take(submission)
            else:
                self._submissions.delete(submission)
            wanted = {name: job_id for name, job_id in alive.items() if name in requests}
            found |= {name: SlurmJob(job_id, requests[name], self._queue) for name, job_id in wanted.items()}
        return found

    def _take(self, submission: Submission) -> None:
        """Remember it, here and in the folder."""
        self._submissions.write(submission)
        self._known.add(submission.name)
