"""A run folder from outside: the names of its files, its status, whether its run is done. No torch in here."""

import json
from pathlib import Path
from typing import Any

from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.settings import Settings, differences

SETTINGS = "settings.yaml"
PROTOCOL = "protocol.json"
STATUS = "status.json"
METRICS = "metrics.jsonl"
ACCURACY = "accuracy.csv"
CHECKPOINTS = "checkpoints"


def read_status(folder: Path) -> dict[str, Any]:
    """What status.json says, {} where there is none that can be read."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def is_finished(settings: Settings, folder: Path) -> bool:
    """Whether this very run is complete; refuses a folder whose run had other settings, with the differences."""
    if not (folder / SETTINGS).is_file():
        return False
    changed = differences(load_settings(str(folder / SETTINGS)), settings)
    if changed:
        raise UserError(f"--out {folder} holds a run with other settings ({'; '.join(changed)}); name another folder")
    return read_status(folder).get("state") == "complete"
