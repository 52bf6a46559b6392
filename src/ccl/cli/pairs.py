"""Which strategies and objectives of a grid don't go together."""

from collections.abc import Sequence

import typer

from ccl.catalogue import title_of
from ccl.errors import RefusedError, UserError
from ccl.loading import load_settings
from ccl.strategies import strategy_title


def pairs_left_out(
    preset: str, assignments: Sequence[str], strategies: Sequence[str], objectives: Sequence[str]
) -> dict[tuple[str, str], str]:
    """Pairs (strategy, objective) that the settings refuse, with the reasons, each of which is shown; others raise.

    Without objectives it is the preset's own.
    """
    axis = objectives or [load_settings(preset, assignments).objective]
    found: dict[tuple[str, str], str] = {}
    for objective in axis:
        for name in strategies:
            try:
                load_settings(preset, [*assignments, f"strategy={name}", f"objective={objective}"])
            except RefusedError as refusal:
                found[name, objective] = str(refusal)
                about = f"{strategy_title(name)} with {title_of(objective)}"
                typer.echo(f"· left out: {about}, as {str(refusal).partition(';')[0]}")
    if len(found) == len(axis) * len(strategies):
        raise UserError(f"no strategy goes together with its objective here: {next(iter(found.values()))}")
    return found
