"""`ccl encode --on slurm`: the parts of a folder of features, made by jobs."""

import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from ccl.cli.image_input import bar, named, report_parts
from ccl.cli.job_reports import report_failures, report_left
from ccl.cli.options import Place
from ccl.continual_encoder import feature_parts, frozen_encoder
from ccl.continual_encoder.feature_jobs import PartsRequest, ShareRun, run_jobs
from ccl.continual_encoder.feature_parts import Manifest
from ccl.runs.display import note

_EVERY = 10.0  # seconds between two lines of a log


class PartsDisplay:
    """How many parts are done: a bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, folder: Path, manifest: Manifest) -> None:
        self._console, self._folder, self._manifest = console, folder, manifest
        self._bar = bar(console, "parts done")
        self._progress = self._bar.__enter__()
        self._told, self._told_at = "", -float("inf")

    def note(self, text: str) -> None:
        note(self._console, text)

    def show(self, runs: Sequence[ShareRun]) -> None:
        total = self._manifest.num_parts
        num_done = total - len(feature_parts.missing_parts(self._folder, self._manifest))
        self._progress(num_done, total)
        processes = [run.process for run in runs if run.process is not None]
        num_queued = sum(process.is_queued for process in processes)
        line = f"{num_done} of {total} parts done, jobs: {len(processes) - num_queued} running, {num_queued} queued"
        is_due = time.monotonic() - self._told_at >= _EVERY
        if not self._console.is_terminal and line != self._told and is_due:
            self._told, self._told_at = line, time.monotonic()
            self.note(line)

    def close(self) -> None:
        self._bar.__exit__(None, None, None)


def encode_by_jobs(
    state: Path, images: Sequence[str], out: Path, version: int | None, part_images: int, place: Place, console: Console
) -> None:
    """Submit what is missing, follow it to its end and report; exit code 1 where a job failed or was not submitted."""
    launcher = place.launcher(out, array_from=2)
    launcher.open(lambda text: note(console, text))  # before images are looked for, which may take long
    encoder = frozen_encoder.frozen(state, version)
    with named(images, console) as (source, _):
        manifest = Manifest.of(encoder, source, part_images)
    feature_parts.begin(out, manifest)
    before = feature_parts.missing_parts(out, manifest)
    display = PartsDisplay(console, out, manifest)
    outcome = run_jobs(PartsRequest(state, images, out, manifest), place.jobs, launcher, display, display.show)
    missing = set(feature_parts.missing_parts(out, manifest))
    made = [feature_parts.written_part(out, manifest, number) for number in before if number not in missing]
    report_parts(out, manifest, made, console)
    failures = [(failure.title, failure.reason, failure.log) for failure in outcome.failures]
    report_failures(failures, outcome.num_shares, "jobs")
    report_left(outcome.num_under_way, outcome.num_waiting, outcome.num_shares, "jobs")
    if outcome.failures or outcome.num_waiting:
        raise typer.Exit(1)
