"""`ccl status`, `ccl rollback`, `ccl promote`, `ccl pin`: the versions of an encoder folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccl.cli.options import ENCODER, echo
from ccl.errors import masked

if TYPE_CHECKING:
    from ccl.continual_encoder.folder import EncoderFolder


def status(
    folder: Path = ENCODER,
    as_json: bool = typer.Option(False, "--json", help="All of it as JSON, for programs."),
) -> None:
    """Show what an encoder folder has learned, its health, which versions there are, and what was refused.

    Exit code 1 where the current version is damaged; the newest good one is named then.

    Example: ccl status my-encoder
    """
    from ccl.continual_encoder.folder import EncoderFolder, folder_status

    encoder_folder = EncoderFolder(folder)
    now = folder_status(encoder_folder)
    if as_json:
        import json

        typer.echo(masked(json.dumps(now, indent=1)))
    else:
        _show(encoder_folder, now)
    if now["damage"]:
        raise typer.Exit(1)


def _show(folder: "EncoderFolder", now: Mapping[str, Any]) -> None:
    from rich.console import Console

    from ccl.continual_encoder.folder_page import gains_line, history, probe_and_health, step_warnings
    from ccl.continual_encoder.ledger import STARTED
    from ccl.errors import counted
    from ccl.report.tables import to_rich

    console, steps = Console(), now["steps"]
    if not steps:
        started = next((f", and starts from {e['weights']}" for e in now["events"] if e["kind"] == STARTED), "")
        echo(f"{folder.path} has learned nothing yet{started}")
    if now["damage"]:
        echo(f"version {now['current']}, the current one, is damaged: {now['damage']}")
    if steps:
        num_images = counted(sum(step["num_images"] for step in steps), "image")
        good = f"{now['newest_good']} is the newest good one" if now["damage"] else f"{now['current']} is current"
        echo(f"{folder.path}: version {good}, {num_images} learned in {counted(len(steps), 'drop')}")
        for table in (history(steps, folder.ledger(), now["versions"]), *probe_and_health(steps[-1])):
            console.print(to_rich(table, console.width))
        echo(steps[-1]["verdict"])
        echo(gains_line(steps[-1]))
        for line in step_warnings(steps[-1]):
            echo(f"warning: {line}")
    for event in now["events"]:
        if event["kind"] == "refused":
            is_there = event.get("version") in now["candidates"]
            way = f"; ccl promote {folder.path} {event['version']}" if is_there else ""
            echo(f"refused: {event['name']}: {event['reason']}{way}")
    if now["learning"]:
        echo(f"a drop is being learned ({now['learning']})")


def rollback(
    folder: Path = ENCODER,
    to: int | None = typer.Option(
        None, "--to", min=0, help="The version to return to; else the newest good one before the current one."
    ),
) -> None:
    """Make an older version the current one; drops learned since are forgotten, and may be learned again.

    Example: ccl rollback my-encoder --to 3
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder

    echo(f"version {ContinualEncoder.open(folder).rollback(to)} is current again")


def promote(
    folder: Path = ENCODER,
    version: int | None = typer.Argument(None, metavar="[VERSION]", min=0, help="Else the newest candidate."),
) -> None:
    """Make a candidate the current version: one that a drop made and that was refused, for what `ccl status` says.

    Look at it first: `ccl encode`, `probe`, `search` and `export` take --version.

    Example: ccl promote my-encoder 4
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder

    echo(f"version {ContinualEncoder.open(folder).promote(version)} is current")


def pin(
    folder: Path = ENCODER,
    version: int | None = typer.Argument(None, metavar="[VERSION]", min=0, help="Without one, shows what is pinned."),
    off: bool = typer.Option(False, "--off", help="Pin nothing: the current version is used."),
) -> None:
    """Use this version for everything whatever is learned meanwhile; it is never deleted.

    Example: ccl pin my-encoder 3
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.errors import UserError

    encoder = ContinualEncoder.open(folder)
    if off and version is not None:
        raise UserError(f"either pin version {version} or nothing with --off")
    if off or version is not None:
        encoder.pin(version)
    if encoder.pinned is None:
        echo("nothing is pinned: the current version is used")
    else:
        echo(f"version {encoder.pinned} is pinned" + ("" if version else f"; ccl pin {folder} --off unpins it"))
