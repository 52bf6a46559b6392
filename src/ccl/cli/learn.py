"""`ccl learn`: take in a drop of unlabelled images."""

import shutil
from pathlib import Path
from typing import Any

import typer

from ccl.cli.options import MAX_BAD, SET, TRUST
from ccl.errors import UserError


def learn(
    images: list[str] = typer.Argument(
        metavar="IMAGES…", help="Folders, files, globs, archives, lists of paths, shards:PATTERN."
    ),
    into: Path = typer.Option(..., "--into", help="The encoder folder; the first call makes it."),
    start: str | None = typer.Option(
        None, "--from", metavar="WEIGHTS", help="Start a new encoder: timm:NAME, torchvision:NAME, a file, a folder."
    ),
    keep: list[str] = typer.Option(
        [], "--keep", help="With --from: images that stand for what it knows, and are rehearsed. Repeatable."
    ),
    assignments: list[str] = SET,
    memory: str | None = typer.Option(None, "--memory", help="What may be remembered in all: 2000 images, or 50MB."),
    probe: Path | None = typer.Option(None, "--probe", help="A labelled folder: also measure accuracy on it."),
    max_drop: float | None = typer.Option(
        None, "--max-drop", min=0.0, help="Keep the old version if more points than this are lost."
    ),
    name: str | None = typer.Option(None, "--name", help="What to call this drop; else its folder's name."),
    keep_versions: int = typer.Option(5, "--keep-versions", min=1, help="How many versions stay on the disk."),
    max_bad: float = MAX_BAD,
    restart: bool = typer.Option(False, "--restart", help="Forget a drop that was interrupted."),
    trust: bool = TRUST,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what time, memory and disk it would take."),
) -> None:
    """Take in unlabelled images: the encoder learns the new without losing the old. They are not needed afterwards.

    The first call makes the encoder folder, with settings chosen from the images' size and number and the device; later
    calls learn the next drops, each with as many epochs as suit its own size. Images that were learned before are
    recognised by their content. Interrupted, the same command resumes.

    After a drop a line says what was gained on its images and lost of older ones: by recognition in another view, and
    with --probe by accuracy, where the learned features stand beside the start, raw pixels and HOG. A version whose
    features are not finite or have collapsed does not become the current one, nor, with --max-drop, one that lost too
    much: points of accuracy with --probe, else of the agreement of remembered images with their groups. It stays as a
    candidate for `ccl promote`. Exit code 3 then.

    With --from, the encoder starts from weights that exist: they are version 0, and what they know is kept
    (docs/adapting.md).

    Example: ccl learn week-1/ --into my-encoder && ccl learn week-2.zip --into my-encoder --max-drop 2
    """
    from ccl.continual_encoder.choose_settings import refuse_mistakes
    from ccl.loading import parsed

    asked = parsed([*assignments, *([] if memory is None else [f"memory.budget={memory}"])])
    is_new = not into.exists()
    if is_new:  # what is asked for lies above the settings of a folder that is there
        refuse_mistakes(asked)
    if keep and start is None:
        raise UserError("--keep is for an encoder that starts from weights; add --from")

    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.continual_encoder.folder import EncoderFolder
    from ccl.continual_encoder.pretrained_start import begin_from
    from ccl.runs.display import make_display

    display = make_display()
    options: dict[str, Any] = {"name": name, "settings": asked, "probe": probe, "max_drop": max_drop}
    options |= {"restart": restart, "keep_versions": keep_versions, "max_bad": max_bad, "dry_run": dry_run}
    try:
        if start is not None:
            begin_from(EncoderFolder(into), start, asked, keep, display, max_bad)
        [outcome] = ContinualEncoder(into).learn(images, progress=display, **options)
    finally:
        if dry_run and is_new:
            shutil.rmtree(into, ignore_errors=True)  # a start was made only to be measured
    outcome.tell(display)
    if outcome.kind == "learned":
        display.note(f"its history and health: ccl status {into}, or the page {into / 'report.html'}")
    if outcome.kind == "refused":
        raise typer.Exit(3)
