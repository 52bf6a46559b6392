"""Which version is the current one, and which is used: rollback and pin."""

from ccl.continual_encoder.encoder_folder import STATE, EncoderFolder
from ccl.errors import UserError
from ccl.runs.folder_lock import locked


def roll_back(state: EncoderFolder, to: int | None) -> int:
    """Make an older version current, by default the newest good one before the current one; its number."""
    with locked(state.path, STATE):
        ledger = state.ledger()
        if ledger.current == 0:
            raise UserError(f"{state.path} has learned nothing yet, so there is nothing to roll back")
        goal = state.good_before(ledger) if to is None else to
        if goal not in state.numbers(ledger):
            raise UserError(f"{state.path} has no version {goal} to roll back to; there are {state.listed(ledger)}")
        if goal == ledger.current:
            raise UserError(f"version {goal} is the current one already")
        state.load(goal)  # raises where it is not good
        ledger.record("rolled back", version=goal, before=ledger.current)
        ledger.current = goal
        state.write(ledger)
    return goal


def pin_version(state: EncoderFolder, version: int | None) -> None:
    """Use this version whatever is learned meanwhile; None: the current one, always."""
    with locked(state.path, STATE):
        ledger = state.ledger()
        if version is not None and version not in state.numbers(ledger):
            raise UserError(f"{state.path} has no version {version}; there are {state.listed(ledger)}")
        ledger.pinned = version
        ledger.record("unpinned" if version is None else "pinned", version=version)
        state.write(ledger)
