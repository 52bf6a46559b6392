"""`ccl verify`: is a run folder or an encoder folder intact?"""

from pathlib import Path

import typer

from ccl.cli.options import echo
from ccl.errors import counted


def verify(
    folder: Path = typer.Argument(metavar="DIR", help="A run folder or an encoder folder."),
    repair: bool = typer.Option(False, "--repair", help="Mend what can be mended; nothing is deleted."),
) -> None:
    """Check every file of a run folder or an encoder folder: good, mendable (and mended with --repair), or lost.

    Versions and checkpoints are checked by their SHA-256, remembered images are opened. A damaged ledger is rebuilt
    from the one before it and from the versions.

    Exit code 0 if everything is intact or mended, 1 if something is broken.

    Example: ccl verify my-encoder --repair
    """
    from ccl.continual_encoder.folder import EncoderFolder
    from ccl.continual_encoder.verifying import check_encoder
    from ccl.runs.verifying import check_run

    encoder_folder, states = EncoderFolder(folder), list[str]()
    found = check_encoder(encoder_folder, repair) if encoder_folder.exists() else check_run(folder, repair)
    for one in found:
        echo(f"{one.state:<8}  {one.what}{f': {one.about}' if one.about else ''}")
        states.append(one.state)
    faults = states.count("mendable") + states.count("lost")
    if not faults:
        echo("all is well")
        return
    advice = f"; ccl verify {folder} --repair mends what is mendable" if "mendable" in states else ""
    echo(f"{counted(faults, 'fault')}{advice}")
    raise typer.Exit(1)
