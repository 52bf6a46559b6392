"""What can be said of an encoder folder at a glance, also where its current version is damaged."""

from typing import Any

from ccl.continual_encoder.encoder_folder import EncoderFolder
from ccl.continual_encoder.pretrained_start import STARTED
from ccl.errors import UserError, counted
from ccl.run_files import read_status
from ccl.training.checkpoint import DamagedError


def folder_status(folder: EncoderFolder) -> dict[str, Any]:
    """Versions, drops, events, and what is wrong with the current version, as JSON values.

    `steps` are those of the current version, or, where that is damaged, of the newest good one.
    """
    ledger = folder.ledger()
    steps: list[dict[str, Any]] = []
    damage = good = None
    if ledger.current:
        try:
            steps = folder.load(ledger.current).about["steps"]
        except DamagedError as error:
            damage, good = str(error), folder.newest_good(ledger)
            steps = [] if good is None else folder.load(good).about["steps"]
    learning = read_status(folder.learning).get("state", "starting") if folder.learning.exists() else None
    return {
        "current": ledger.current,
        "pinned": ledger.pinned,
        "versions": folder.numbers(ledger),
        "damage": damage,  # None where the current version is good
        "newest_good": good,  # where the current version is damaged
        "learning": learning,  # the state of the drop under way, if there is one
        "events": ledger.events,
        "steps": steps,
    }


def in_brief(folder: EncoderFolder) -> str:
    """Version, images and drops in a few words, from the ledger alone."""
    try:
        ledger = folder.ledger()
    except UserError:
        return "nothing learned"
    own = {ledger.current, *ledger.ancestors}
    sizes = [event["num_images"] for event in ledger.events if event["kind"] == "learned" and event["version"] in own]
    started = next((f", starts from {e['weights']}" for e in ledger.events if e["kind"] == STARTED), "")
    learned = f"{counted(sum(sizes), 'image')} in {counted(len(sizes), 'drop')}" if sizes else "nothing learned"
    pinned = f", version {ledger.pinned} pinned" if ledger.pinned is not None else ""
    version = f"version {ledger.current}, " if ledger.current else ""
    return f"{version}{learned}{started}{pinned}"
