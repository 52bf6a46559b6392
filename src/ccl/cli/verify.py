"""`ccl verify`: is a run folder or an encoder folder intact?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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

    encoder_folder, faults = EncoderFolder(folder), 0
    for line, is_fault in _of_encoder(encoder_folder) if encoder_folder.exists() else _of_run(folder):
        typer.echo(line)
        faults += is_fault
    if faults:
        typer.echo(counted(faults, "fault"))
        raise typer.Exit(1)
    typer.echo("all is well")


def _of_run(folder: Path) -> Iterator[tuple[str, bool]]:
    """Lines on a run folder, and whether each is a fault."""
    from ccl.data import BadImageError, FileSource
    from ccl.runs.run_folder import CHECKPOINTS, MEMORY, read_run
    from ccl.training.checkpoint import CheckpointStore

    record = read_run(folder)
    what = (record.settings.strategy, record.settings.objective, record.protocol["dataset"])
    yield f"{folder}: {', '.join(what)}, seed {record.settings.seed}", False
    accuracies = "no accuracies yet" if record.accuracy is None else "accuracies"
    yield f"state: {record.status.get('state')}, {len(record.rows)} metric rows, {accuracies}", False
    for finding in CheckpointStore(folder / CHECKPOINTS).check():
        found = finding.reason or f"good, {counted(finding.about['position']['step'], 'step')} complete"
        size = f"{finding.num_bytes / 1e6:.1f} MB"
        yield f"checkpoint {finding.folder.name}: {size}, {found}", finding.reason is not None
    images = sorted(path for path in (folder / MEMORY).glob("*") if path.suffix != ".csv")
    for path in images:
        try:
            FileSource([path]).picture(0)
        except BadImageError as error:
            yield f"memory/{path.name}: {error.reason}", True
    yield f"memory: {counted(len(images), 'image')} written out", False


def _of_encoder(folder: "EncoderFolder") -> Iterator[tuple[str, bool]]:
    """Lines on an encoder folder and its versions, and whether each is a fault."""
    from ccl.data import BadImageError, EncodedSource
    from ccl.errors import UserError

    ledger = folder.ledger()
    yield f"{folder.path}: version {ledger.current} is current, {len(ledger.events)} events", False
    if ledger.current not in [0, *folder.numbers(ledger)]:
        yield f"the current version {ledger.current} is missing; ccl rollback --to {folder.listed(ledger)}", True
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
        good = f"good, {len(finding.about.get('steps', []))} drops, {finding.num_bytes / 1e6:.1f} MB"
        yield f"version {finding.number}: {fault or good}", fault is not None
