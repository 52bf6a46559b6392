"""`ccl verify`: is a run folder or an encoder folder intact?"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccl.errors import counted

if TYPE_CHECKING:
    from ccl.continual_encoder.folder import EncoderFolder


def verify(folder: Path = typer.Argument(metavar="DIR", help="A run folder or an encoder folder.")) -> None:
    """Check a run folder: settings, rows, accuracies, remembered images and every checkpoint's SHA-256.

    Of an encoder folder: its ledger, every version's SHA-256 and remembered images, and what it has seen.

    Exit code 0 if everything is intact, 1 if something is broken.

    Example: ccl verify runs/ccl
    """
    from ccl.continual_encoder.folder import EncoderFolder
    from ccl.data import BadImageError, FileSource
    from ccl.runs.run_folder import CHECKPOINTS, read_run
    from ccl.training.checkpoint import CheckpointStore

    if (encoder_folder := EncoderFolder(folder)).exists():
        _end(_verify_encoder(encoder_folder))
        return
    record = read_run(folder)
    settings, faults = record.settings, 0
    num_steps = 1 if record.protocol["all_at_once"] else len(record.step_names)
    what = (settings.strategy, settings.objective, record.protocol["dataset"], f"seed {settings.seed}")
    typer.echo(f"{folder}: {', '.join(what)}")
    accuracies = "no accuracies yet" if record.accuracy is None else "accuracies"
    typer.echo(f"state: {record.status.get('state')}, {len(record.rows)} metric rows, {accuracies}")
    for finding in CheckpointStore(folder / CHECKPOINTS).check():
        found = finding.reason or f"good, {_where(finding.about['position'], num_steps)}"
        faults += finding.reason is not None
        typer.echo(f"checkpoint {finding.folder.name}: {finding.num_bytes / 1e6:.1f} MB, {found}")
    images = sorted(path for path in (folder / "memory").glob("*") if path.suffix != ".csv")
    for path in images:
        try:
            FileSource([path]).picture(0)
        except BadImageError as error:
            faults += 1
            typer.echo(f"memory/{path.name}: {error.reason}")
    typer.echo(f"memory: {counted(len(images), 'image')} written out")
    _end(faults)


def _end(faults: int) -> None:
    if faults:
        typer.echo(counted(faults, "fault"))
        raise typer.Exit(1)
    typer.echo("all is well")


def _verify_encoder(folder: "EncoderFolder") -> int:
    """Report each version; returns how many faults there are."""
    from ccl.data import BadImageError, EncodedSource
    from ccl.errors import UserError

    ledger, faults = folder.ledger(), 0
    typer.echo(f"{folder.path}: version {ledger.current} is current, {len(ledger.events)} events")
    if ledger.current not in [0, *folder.numbers(ledger)]:
        faults += 1
        typer.echo(f"the current version {ledger.current} is missing; ccl rollback --to {folder.listed(ledger)}")
    for finding in folder.versions.check():
        fault = finding.reason
        if fault is None:
            memory = folder.memory_of(finding.number)
            source = EncodedSource(memory.files, memory.ids)
            try:
                folder.seen(finding.about["seen"])
                for position in range(len(source)):
                    source.picture(position)
            except (UserError, BadImageError) as error:
                fault = str(error)
        faults += fault is not None
        good = f"good, {len(finding.about.get('steps', []))} drops, {finding.num_bytes / 1e6:.1f} MB"
        typer.echo(f"version {finding.number}: {fault or good}")
    return faults


def _where(position: Mapping[str, Any], num_steps: int) -> str:
    """The next thing to do of a run, in words."""
    if position["step"] >= num_steps:
        return "after the last step"
    if position["phase"] != "train":
        return f"step {position['step'] + 1}, trained"
    return f"step {position['step'] + 1}, epoch {position['epoch'] + 1}, batch {position['batch'] + 1}"
