"""`ccl status`, `ccl rollback`, `ccl pin`: the versions of an encoder folder."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER


def status(
    state: Path = ENCODER,
    as_json: bool = typer.Option(False, "--json", help="All of it as JSON, for programs."),
) -> None:
    """Show what an encoder folder has learned, its health, which versions there are, and what was refused.

    Example: ccl status my-encoder
    """
    from ccl.continual_encoder.encoder_folder import EncoderFolder
    from ccl.run_files import read_status

    folder = EncoderFolder(state)
    ledger = folder.ledger()
    about = folder.version(ledger.current).about if ledger.current else {}
    numbers = folder.numbers(ledger)
    if as_json:
        import json

        values = {"current": ledger.current, "pinned": ledger.pinned, "versions": numbers, "events": ledger.events}
        typer.echo(json.dumps({**values, "steps": about.get("steps", [])}, indent=1))
        return

    from rich.console import Console

    from ccl.continual_encoder.tables import health, history
    from ccl.report.tables import to_rich

    console = Console()
    if not about:
        start = next((f", and starts from {e['weights']}" for e in ledger.events if e["kind"] == "started"), "")
        console.print(f"{state} has learned nothing yet{start}", markup=False, highlight=False)
    else:
        num_images = sum(step["num_images"] for step in about["steps"])
        learned = f"{num_images:,} images learned in {len(about['steps'])} drops"
        console.print(f"{state}: version {ledger.current} is current, {learned}", highlight=False, markup=False)
        console.print(to_rich(history(about["steps"], ledger, numbers), console.width))
        console.print(to_rich(health(about["steps"][-1]), console.width))
        console.print(about["steps"][-1]["verdict"], markup=False, highlight=False)
    for event in ledger.events:
        if event["kind"] == "refused":
            console.print(f"refused: {event['name']}: {event['reason']}", markup=False, highlight=False)
    if folder.learning.exists():
        now = read_status(folder.learning)
        console.print(f"a drop is being learned ({now.get('state', 'starting')})", highlight=False)


def rollback(
    state: Path = ENCODER,
    to: int | None = typer.Option(None, "--to", min=0, help="The version to return to; else the one before."),
) -> None:
    """Make an older version the current one; drops learned since are forgotten, and may be learned again.

    Example: ccl rollback my-encoder --to 3
    """
    from ccl.continual_encoder import ContinualEncoder

    typer.echo(f"version {ContinualEncoder.open(state).rollback(to)} is current again")


def pin(
    state: Path = ENCODER,
    version: int | None = typer.Argument(None, metavar="[VERSION]", min=0, help="Without one, nothing is pinned."),
) -> None:
    """Use this version for everything whatever is learned meanwhile; it is never deleted.

    Example: ccl pin my-encoder 3
    """
    from ccl.continual_encoder import ContinualEncoder

    ContinualEncoder.open(state).pin(version)
    typer.echo("nothing is pinned: the current version is used" if version is None else f"version {version} is pinned")
