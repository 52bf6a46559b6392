"""What the tests of states share: settings with which a step takes a second, and how two states are compared."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ccl.continual_encoder.folder import EncoderFolder
from ccl.runs.run_folder import TIMES

TINY: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 12,
    "threads": 1,
    "device": "cpu",
    "data": {"resize": 16, "workers": 0},
    "views": {"size": 16},
    "encoder": {"backbone": "convnet", "width": 4, "dim": 8},
    "moco_v2": {"queue_size": 16},
    "extra_sample_queue": {"size": 8},
    "memory": {"clusters": 3, "budget": 12},
}

Deliver = Callable[..., Path]


def deliver_to(
    place: Path, pictures: dict[str, list[bytes]], name: str, domain: str = "symbols", first: int = 0, count: int = 30
) -> Path:
    """A folder with some pictures of a domain."""
    folder = place / name
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(pictures[domain][first : first + count], start=first):
        (folder / f"{number:03d}.png").write_bytes(content)
    return folder


_TIMES = {"created", "date", "when", *TIMES}  # and what follows from them
_OWN = {"folder", "parent_sha256", "files", "began"}  # an identity, and hashes of what has times in it


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor of every version, of what was seen, of rows and ledger; only times are left out."""
    state = EncoderFolder(folder)
    found = {}
    for number in state.versions.numbers():
        version = state.versions.load(number)
        for name, tensor in version.tensors.items():
            found[f"version {number}: {name}"] = _hash(tensor.numpy().tobytes())
        found[f"version {number}: about"] = _hash(json.dumps(_timeless(version.about), sort_keys=True).encode())
        found[f"version {number}: seen"] = _hash(state.seen(version))
    for path in sorted(folder.glob("steps/*/metrics.jsonl")):
        rows = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        found[f"rows of {path.parent.name}"] = _hash(json.dumps(rows, sort_keys=True).encode())
    found["ledger"] = _hash(json.dumps(_timeless(state.ledger().events), sort_keys=True).encode())
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _TIMES | _OWN}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
