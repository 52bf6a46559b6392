"""What was submitted to Slurm, as files in the folder `slurm` beside the runs: a reopened command finds its jobs.

A submission is written before sbatch is called and again with the id of the job, so that even a command that is killed
in between loses none: the name of a job is unlike any other.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

from ccl.atomic_files import make_folder, write_file
from ccl.runs.folder_lock import LOCK
from ccl.runs.launchers import RunRequest
from ccl.runs.slurm_commands import JobState

FOLDER = "slurm"  # `slurm_job.sh` knows it too


@dataclass(frozen=True)
class Submission:
    """One call of sbatch."""

    name: str  # of its jobs
    cells: Sequence[str]  # the names of its runs: a job of its own for one, an array for more
    job: str | None = None  # None until Slurm has given it an id

    def job_ids(self) -> dict[str, str]:
        """Of each run, by name; empty without an id."""
        if self.job is None:
            return {}
        if len(self.cells) == 1:
            return {self.cells[0]: self.job}
        return {cell: f"{self.job}_{index}" for index, cell in enumerate(self.cells)}

    def job_among(self, jobs: Mapping[str, JobState]) -> str | None:
        """Its id, if need be by its name among the jobs that Slurm knows."""
        named = (job_id.partition("_")[0] for job_id, job in jobs.items() if job.name == self.name)
        return self.job or next(named, None)


def new_submission(names: Sequence[str], folder: Path) -> Submission:
    """One that is not yet submitted; its name says which run or folder of runs it is."""
    title = re.sub(r"[^A-Za-z0-9._=-]+", "_", names[0] if len(names) == 1 else folder.name)
    return Submission(f"ccl-{title[:100]}-{uuid4().hex[:8]}", list(names))


class Submissions:
    """The submissions of a folder of runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def locked(self) -> FileLock:
        """To be held by who submits: the commands on one folder do so one after the other."""
        make_folder(self._folder)
        return FileLock(self._folder / LOCK)

    def read(self) -> list[Submission]:
        files = sorted(self._folder.glob("ccl-*.json"))
        return [Submission(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def write(self, submission: Submission) -> None:
        write_file(self._file(submission), json.dumps(asdict(submission)))

    def describe(self, request: RunRequest) -> None:
        """Write what the job of a run is to do, as words of bash."""
        lines = [
            f"LOG={shlex.quote(str(request.log))}",
            f"SAVED={shlex.quote(str(request.results.saved))}",
            f"COMMAND=({shlex.join(request.command)})",
            f"SETTINGS_FILES=({shlex.join(map(str, request.settings_files))})",
            f"THREADS={request.threads or ''}",
        ]
        write_file(self._folder / f"{request.name}.sh", os.fsencode("\n".join([*lines, ""])))

    def delete(self, submission: Submission) -> None:
        self._file(submission).unlink(missing_ok=True)

    def _file(self, submission: Submission) -> Path:
        return self._folder / f"{submission.name}.json"
