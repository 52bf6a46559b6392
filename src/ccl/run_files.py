"""A run folder from outside: the names of its files, its status, whether its run is done. No torch in here."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccl.errors import UserError
from ccl.loading import read_settings
from ccl.settings import Settings, differences

SETTINGS = "settings.yaml"
PROTOCOL = "protocol.json"
STATUS = "status.json"
METRICS = "metrics.jsonl"
ACCURACY = "accuracy.csv"
CHECKPOINTS = "checkpoints"
ENCODER = "encoder.safetensors"
MEMORY = "memory"
EMBEDDINGS = "embeddings.npz"
TIMES = ("seconds", "cpu_seconds")  # what two runs of the same bits may differ in, row by row


def read_status(folder: Path) -> dict[str, Any]:
    """What status.json says, {} where there is none that can be read."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, [] where there are none yet."""
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among these and below them, each once, sorted; refuses a folder without any."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        below = sorted(path.parent for path in folder.rglob(SETTINGS) if (path.parent / STATUS).is_file())
        if not below:
            raise UserError(f"{folder} is not a run folder and holds none: no {SETTINGS} with a {STATUS} in it")
        found |= dict.fromkeys(path.resolve() for path in below)
    return list(found)


def is_finished(settings: Settings, folder: Path) -> bool:
    """Whether this very run is complete; refuses a folder whose run had other settings, with the differences."""
    if not (folder / SETTINGS).is_file():
        return False
    changed = differences(read_settings(folder / SETTINGS), settings)
    if changed:
        raise UserError(f"--out {folder} holds a run with other settings ({'; '.join(changed)}); name another folder")
    return read_status(folder).get("state") == "complete"
