"""What a command says at its end of runs that were started for it: those that failed, and those that are left."""

from collections.abc import Sequence
from pathlib import Path

import typer


def report_failures(failures: Sequence[tuple[str, str, Path]], total: int, what: str, and_so: str = "") -> None:
    """Title, reason and log of each, and how many of all they are."""
    for title, reason, log in failures:
        first, *rest = reason.splitlines()
        lines = [f"ccl: {title} failed: {first}"]
        lines += [f"     {line}" for line in [*rest, f"its whole output: {log}"]]
        typer.echo("\n".join(lines), err=True)
    if failures:
        failed = f"ccl: {len(failures)} of {total} {what} failed{and_so}"
        typer.echo(f"{failed}; the same command tries them again", err=True)


def report_left(num_under_way: int, num_waiting: int, total: int, what: str) -> None:
    """Of a command with --detach: what is with Slurm, and what is not."""
    if num_under_way:
        followed = "the same command without --detach follows them"
        typer.echo(f"· {num_under_way} of {total} {what} are with Slurm; {followed}")
    if num_waiting:
        waiting = f"{num_waiting} of {total} {what} were not submitted"
        typer.echo(f"ccl: {waiting}; the same command submits them", err=True)
