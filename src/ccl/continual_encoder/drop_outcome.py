"""How a drop is taken in, and what became of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ccl.continual_encoder.gains import gains_line
from ccl.data import Gathered
from ccl.data.ingest import MAX_BAD

KEEP_VERSIONS = 5

# From the folder in which archives may be unpacked, who shows progress, the side to bring images to (None: as they are)
# and which digests are known, to the images.
Gather = Callable[[Path, Callable[[int, int], None], int | None, Callable[[bytes], bool]], Gathered]


@dataclass(frozen=True)
class Options:
    """How a drop is taken in."""

    name: str = "images"  # what people call it
    asked: Mapping[str, Any] | None = None  # settings
    probe: Path | None = None  # a labelled folder to measure accuracy on
    max_drop: float | None = None  # points that may be lost; None: any
    restart: bool = False  # forget an unfinished drop
    keep_versions: int = KEEP_VERSIONS
    max_bad: float = MAX_BAD  # percent of the labelled folder's files that may be unusable
    dry_run: bool = False  # only say what it would take


@dataclass(frozen=True)
class Outcome:
    """What became of a drop."""

    kind: Literal["learned", "known", "refused", "planned"]
    version: int  # the current one; 0 for none
    message: str  # in a line, or some for "planned"
    step: Mapping[str, Any]  # what the state remembers of the drop, as JSON values; empty for "known" and "planned"

    @property
    def gains(self) -> str:
        """In a line, what was gained on the new images and lost of the old; empty where nothing was learned."""
        return gains_line(self.step)
