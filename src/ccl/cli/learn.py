"""`ccl learn`: take in a drop of unlabelled images."""

from pathlib import Path
from typing import Any

import typer

from ccl.cli.options import SET


def learn(
    images: list[str] = typer.Argument(
        metavar="IMAGES…", help="Folders, files, globs, archives, lists of paths, shards:PATTERN."
    ),
    into: Path = typer.Option(..., "--into", help="The encoder folder; the first call makes it."),
    assignments: list[str] = SET,
    memory: str | None = typer.Option(None, "--memory", help="What may be remembered in all: 2000 images, or 50MB."),
    probe: Path | None = typer.Option(None, "--probe", help="A labelled folder: also measure accuracy on it."),
    max_drop: float | None = typer.Option(
        None, "--max-drop", min=0.0, help="Keep the old version if more points than this are lost."
    ),
    name: str | None = typer.Option(None, "--name", help="What to call this drop; else its folder's name."),
    keep_versions: int = typer.Option(5, "--keep-versions", min=1, help="How many versions stay on the disk."),
    restart: bool = typer.Option(False, "--restart", help="Forget a drop that was interrupted."),
) -> None:
    """Take in unlabelled images: the encoder learns the new without losing the old. They are not needed afterwards.

    The first call makes the encoder folder, with settings chosen from the images' size and number and the device; later
    calls learn the next drops. Images that were learned before are recognised by their content. Interrupted, the same
    command resumes. With --max-drop, a version that lost too much does not become the current one: points of accuracy
    with --probe, else of the agreement of remembered images with their groups. Exit code 1 then.

    Example: ccl learn week-1/ --into my-encoder && ccl learn week-2.zip --into my-encoder --max-drop 2
    """
    from ccl.continual_encoder.default_settings import refuse_mistakes
    from ccl.loading import parsed
    from ccl.settings import merged

    asked: dict[str, Any] = parsed(assignments)
    if memory is not None:
        asked = merged(asked, {"memory": {"budget": int(memory) if memory.isdecimal() else memory}})
    refuse_mistakes(asked)  # now: torch takes seconds

    from ccl.continual_encoder import ContinualEncoder
    from ccl.continual_encoder.encoder_folder import EncoderFolder
    from ccl.continual_encoder.tables import health
    from ccl.report.tables import to_rich
    from ccl.runs.display import make_display

    display = make_display()
    outcomes = ContinualEncoder(EncoderFolder(into)).learn(
        [Path(image) for image in images],
        name=name,
        probe=probe,
        max_drop=max_drop,
        restart=restart,
        keep_versions=keep_versions,
        settings=asked,
        progress=display,
    )
    for outcome in outcomes:
        if outcome.step:
            display.console.print(to_rich(health(outcome.step), display.console.width))
        display.note(outcome.message)
        if outcome.kind == "refused":
            display.note(f"version {outcome.version} stays the current one")
            display.note("the same command with a larger --max-drop promotes the new one without learning again")
            raise typer.Exit(1)
    if any(outcome.kind == "learned" for outcome in outcomes):
        display.note(f"its history and health: ccl status {into}, or the page {into / 'report.html'}")
