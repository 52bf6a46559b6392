"""Which drop is under way: claimed before it is learned, so that only the same images can resume it."""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ccl.atomic_files import write_file
from ccl.continual_encoder.encoder_folder import EncoderFolder, Ledger
from ccl.data import Gathered
from ccl.errors import UserError
from ccl.settings import Settings, differences
from ccl.training import Observer

DROP = "drop.json"
UNPACKED = ".unpacked"  # hidden, should the state lie in a folder that is learned


def fingerprint(images: Gathered) -> str:
    """Equal for equal images in equal order."""
    return hashlib.sha256(b"".join(images.digests)).hexdigest()[:16]


@dataclass(frozen=True)
class PendingDrop:
    """A drop, and the version that it is learned on."""

    name: str
    fingerprint: str
    parent: int
    num_images: int
    asked: Mapping[str, Any] = field(default_factory=dict)  # all settings that were ever asked for, this drop's on top

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.fingerprint, self.parent, self.num_images

    def begun(self, state: EncoderFolder) -> "PendingDrop | None":
        """This drop as it was begun before, None where it was not."""
        if not is_begun(state):
            return None
        known = {key: value for key, value in _read(state.learning / DROP).items() if key in asdict(self)}
        before = PendingDrop(**{**asdict(self), **known})
        return before if before._identity == self._identity else None

    def begin(self, state: EncoderFolder, ledger: Ledger, settings: Settings, restart: bool, display: Observer) -> None:
        """From here on this drop is under way, or resumed; refuses where another one is."""
        path = state.learning / DROP
        if path.exists() and restart:
            display.note("the unfinished drop is forgotten")
            _forget(state)
        elif self.begun(state) is not None:
            _refuse_changes(state, settings)
            return
        elif path.exists():
            begun = _read(path)
            if not begun.get("refused"):
                raise UserError(
                    f"{state.path} is in the middle of learning {begun.get('name')!r} ({begun.get('num_images')} "
                    "images): give the same images again to resume, or --restart to forget them"
                )
            display.note(f"the drop {begun.get('name')!r}, which was refused, is forgotten")
            _forget(state)
        state.write(ledger)  # first: it marks the folder as an encoder folder
        state.write_settings(settings)
        state.learning.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({**asdict(self), "began": time.time()}, indent=1))


def is_begun(state: EncoderFolder) -> bool:
    """Whether a drop is under way."""
    return (state.learning / DROP).exists()


def mark_refused(state: EncoderFolder) -> bool:
    """Another drop may now take its place; whether this is news."""
    begun = _read(state.learning / DROP)
    write_file(state.learning / DROP, json.dumps(begun | {"refused": True}, indent=1))
    return not begun.get("refused")


def forget_stale(state: EncoderFolder, ledger: Ledger) -> None:
    """A drop begun on another version than the current one became current just before a kill, or never will."""
    if is_begun(state) and _read(state.learning / DROP).get("parent") != ledger.current:
        state.forget_learning()


def _forget(state: EncoderFolder) -> None:
    """All of another drop but what was just unpacked of this one."""
    for path in state.learning.iterdir():
        if path.name != UNPACKED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _refuse_changes(state: EncoderFolder, now: Settings) -> None:
    """A drop that has begun is finished as it began."""
    before = state.settings()
    wrong = differences(before, now) if before is not None else []
    if wrong:
        raise UserError(f"a drop is half learned with other settings ({'; '.join(wrong)}); --restart begins it anew")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read ({error}); delete {path.parent} to forget the unfinished drop") from None
    return content if isinstance(content, dict) else {}
