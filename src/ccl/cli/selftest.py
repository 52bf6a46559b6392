"""`ccl selftest`: the kill-and-resume proof on the user's own machine."""

import tempfile
from pathlib import Path

import typer


def selftest(
    kills: int = typer.Option(8, "--kills", min=1, help="How many times a run is killed."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the random moments."),
) -> None:
    """Prove on this machine that a run survives kills: same tensors, same memory, same metric rows, bit for bit.

    Runs CCL on embedded images once unbroken, then kills it (SIGKILL) at random moments and starts the same command
    again. Takes a minute or two; exit code 1 if anything differs.

    Example: ccl selftest --kills 20
    """
    from ccl.runs.crash_test import SMALL, fingerprint, finish, kill_and_resume, start

    with tempfile.TemporaryDirectory(prefix="ccl-selftest-") as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        typer.echo("the unbroken run …")
        finish(start(whole, SMALL))
        differing: list[str] = []
        for found in kill_and_resume(whole, broken, SMALL, kills, seed, typer.echo):
            differing += found
        if differing:
            typer.echo(f"DIFFERS in {len(differing)} places, first: {', '.join(differing[:5])}")
            raise typer.Exit(1)
        count = len(fingerprint(whole))
        typer.echo(f"holds: {kills} kills of {kills} resumed; {count} tensors, images and rows equal bit for bit")
