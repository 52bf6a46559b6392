"""A folder of features whose parts are made by jobs, each doing one of N shares: started, followed, started again."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccl.continual_encoder.feature_parts import Manifest, begin, missing_parts, share_of
from ccl.data.shards import absolute_input
from ccl.errors import UserError
from ccl.runs.launchers import Launcher, RunRequest, StartedRun
from ccl.runs.slurm_submissions import Submissions
from ccl.runs.supervision import Notes, Output, supervise, why_failed

LOGS = "logs"  # beside the parts
NUM_JOBS = 8  # where no number is asked for
_NAME = re.compile(r"share-(\d+)-of-(\d+)")


@dataclass(frozen=True)
class Share:
    """This one of so many shares of the parts, counted from 0; what is left of it stands in its folder."""

    folder: Path
    manifest: Manifest
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"share-{self.number + 1}-of-{self.count}"

    @property
    def saved(self) -> Path:
        return self.folder

    def is_complete(self) -> bool:
        return not missing_parts(self.folder, self.manifest, share_of(self.manifest, (self.number, self.count)))

    def is_held(self) -> bool:
        """Parts have no lock: two who write the same one write the same bytes."""
        return False


@dataclass(frozen=True)
class PartsRequest:
    """Which images, which version of which encoder, into which folder."""

    encoder: Path
    images: Sequence[str]
    folder: Path
    manifest: Manifest

    def shares(self, count: int) -> list[Share]:
        folder = Path(os.path.abspath(self.folder))
        return [Share(folder, self.manifest, number, count) for number in range(count)]

    def of(self, share: Share) -> RunRequest:
        """`ccl encode … --shard I/N`, with the version that was current when this was asked for."""
        words = ["encode", os.path.abspath(self.encoder), *map(absolute_input, self.images)]
        words += ["--out", str(share.folder), "--shard", f"{share.number + 1}/{share.count}"]
        words += ["--part-images", str(self.manifest.part_images), "--version", str(self.manifest.about["version"])]
        return RunRequest(share.name, words, share.folder / LOGS / f"{share.name}.txt", share)


@dataclass(frozen=True)
class Failure:
    """Why a share is not complete, and where the whole output of its job is."""

    title: str
    reason: str
    log: Path


class ShareRun:
    """A share as its parent sees it."""

    def __init__(self, share: Share, request: RunRequest, process: StartedRun | None) -> None:
        self.share, self.process = share, process
        self.is_complete = False
        self.failure: Failure | None = None
        self._request, self._output = request, Output(request.log)

    @property
    def name(self) -> str:
        return self.share.name

    @property
    def is_settled(self) -> bool:
        return self.is_complete or self.failure is not None

    @property
    def is_waiting(self) -> bool:
        return not self.is_settled and self.process is None

    def look(self) -> None:
        if self.process is None:
            self.is_complete = self.share.is_complete()
        elif (exit_code := self.process.poll()) is not None:
            self.process = None
            self.is_complete = self.share.is_complete()
            if not self.is_complete:
                title = f"share {self.share.number + 1}/{self.share.count}"
                self.failure = Failure(title, why_failed(exit_code, self._output.lines()), self._request.log)

    def request(self, threads: int | None) -> RunRequest:
        self._output.begin()
        return self._request


@dataclass(frozen=True)
class JobsOutcome:
    """What became of the shares that were not complete."""

    num_shares: int
    failures: list[Failure]
    num_under_way: int = 0  # left to a detached launcher
    num_waiting: int = 0


def run_jobs(
    asked: PartsRequest, jobs: int | None, launcher: Launcher, notes: Notes, show: Callable[[Sequence[ShareRun]], None]
) -> JobsOutcome:
    """Make the missing parts by at most so many jobs; `launcher` is open. Jobs under way of before are followed."""
    count = max(1, min(jobs or NUM_JOBS, asked.manifest.num_parts))
    known = [share for number in {count, *_counts_before(asked.folder)} for share in asked.shares(number)]
    begin(asked.folder, asked.manifest)
    under_way = launcher.under_way(asked.of(share) for share in known)
    if others := [share.count for share in known if share.name in under_way and share.count != count]:
        notes.note(f"jobs of {others[0]} shares are under way: these are followed, and the number of jobs stays")
        count = others[0]
    runs = [ShareRun(share, asked.of(share), under_way.get(share.name)) for share in asked.shares(count)]
    runs = [run for run in runs if run.process is not None or not run.share.is_complete()]
    _make_logs(asked.folder)
    supervise(runs, count, launcher, notes, lambda: show(runs))
    return JobsOutcome(
        len(runs),
        [run.failure for run in runs if run.failure is not None],
        sum(run.process is not None for run in runs),
        sum(run.is_waiting for run in runs),
    )


def _counts_before(folder: Path) -> Iterator[int]:
    """The numbers of shares for which something was submitted."""
    for submission in Submissions(folder).read():
        for name in submission.cells:
            if found := _NAME.fullmatch(name):
                yield int(found[2])


def _make_logs(folder: Path) -> None:
    try:
        (folder / LOGS).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder} can't be used: {error.strerror}") from None
