"""The ledger of an encoder folder: which version is current, which is pinned, and what happened.

It is sealed, replaced whole, and the one before it stays beside it.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import ConfigDict, TypeAdapter

from ccl.atomic_files import write_file
from ccl.errors import UserError
from ccl.sealed_json import seal, unseal

LEDGER, BEFORE = "ledger.json", "ledger.before.json"
UNSEALED = "state.json"  # the ledger of format 1, which becomes one of format 2 when it is written next
VERSIONS = "versions"  # the folder of the versions, each of which says enough to rebuild the ledger
FORMAT = 2
LEARNED, REFUSED, PROMOTED, ROLLED_BACK = "learned", "refused", "promoted", "rolled back"  # events of versions
COLLAPSED = "collapsed"  # how a verdict begins, and a fault
STARTED = "started"  # the event of an encoder that starts from weights


class DamagedLedgerError(UserError):
    """The ledger is missing or not as it was written."""

    def __init__(self, path: Path, why: str) -> None:
        self.why = why
        advice = f"`ccl verify {path.parent} --repair` rebuilds it from the versions"
        super().__init__(f"{path} {why}; nothing was changed; {advice}")


@dataclass
class Ledger:
    """The content of the file."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    created: float = field(default_factory=time.time)
    current: int = 0  # the current version; 0 before the first drop, the weights it started from if there are any
    latest: int = 0  # the highest number ever given
    pinned: int | None = None  # the version that is used, whatever is learned meanwhile
    asked: dict[str, Any] = field(default_factory=dict)  # settings asked for before the first images were known
    events: list[dict[str, Any]] = field(default_factory=list)  # the oldest first; `kind` and `when` in each
    identity: str = field(default_factory=lambda: uuid4().hex)  # of the folder, wherever it lies
    hashes: dict[int, str] = field(default_factory=dict)  # the SHA-256 of each version's manifest; "" if not known

    def record(self, kind: str, **about: Any) -> None:
        """Append an event."""
        self.events.append({"kind": kind, "when": time.time(), **about})

    @property
    def parents(self) -> dict[int, int]:
        """The version that each was learned on, as the events have it."""
        parents, current = dict[int, int](), 0
        for event in self.events:
            kind = event["kind"]
            if kind == LEARNED or (kind == REFUSED and "version" in event):
                parents[event["version"]] = current
            if kind in (LEARNED, PROMOTED, ROLLED_BACK):
                current = event["version"]
        return parents

    @property
    def ancestors(self) -> list[int]:
        """The versions that the current one was learned on, the newest first.

        The last is version 0, what it started from, of which an encoder that began from nothing has no file.
        """
        parents, found = self.parents, list[int]()
        number = parents.get(self.current, 0)
        while number:
            found.append(number)
            number = parents.get(number, 0)
        return [*found, 0] if self.current else found

    @property
    def candidates(self) -> list[int]:
        """The versions that were refused and not promoted since, ascending."""
        refused = {event["version"] for event in self.events if event["kind"] == REFUSED and "version" in event}
        return sorted(refused - {event["version"] for event in self.events if event["kind"] in (PROMOTED, ROLLED_BACK)})


def has_ledger(folder: Path) -> bool:
    """Whether there is an encoder folder, be its ledger good or not."""
    return any((folder / name).exists() for name in (LEDGER, BEFORE, UNSEALED, VERSIONS))


def read_ledger(folder: Path) -> Ledger:
    """Raises UserError in one line where it is not good, or made by a newer ccl; nothing may be changed then."""
    is_unsealed = not (folder / LEDGER).exists() and (folder / UNSEALED).is_file()
    return _read(folder / UNSEALED, json.loads) if is_unsealed else _read(folder / LEDGER)


def read_before(folder: Path) -> Ledger:
    """The ledger before the last one."""
    return _read(folder / BEFORE)


def _read(path: Path, opened: Callable[[bytes], dict[str, Any]] = unseal) -> Ledger:
    try:
        content = opened(path.read_bytes())
        if content.pop("format") > FORMAT:
            raise UserError(f"{path.parent} was made by a newer ccl; update ccl to use it")
        ledger = TypeAdapter(Ledger).validate_json(json.dumps(content))
        _ = ledger.ancestors, ledger.candidates  # every event that counts has what it must have
        if not max(ledger.current, ledger.pinned or 0) <= ledger.latest:
            raise ValueError(f"version {ledger.current} is current, and {ledger.latest} the latest")
        return ledger
    except UserError:
        raise
    except FileNotFoundError:
        raise DamagedLedgerError(path, "is missing") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedLedgerError(path, f"is damaged ({' '.join(str(error).split())[:160]})") from None


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """Replace the ledger; from here on this one is true."""
    path = folder / LEDGER
    if path.exists():
        write_file(folder / BEFORE, path.read_bytes())
    write_file(path, seal({"format": FORMAT, **asdict(ledger)}))
    (folder / UNSEALED).unlink(missing_ok=True)
