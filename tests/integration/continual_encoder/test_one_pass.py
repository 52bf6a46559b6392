"""How often a drop's files are opened before they are learned."""

import os
import sys
from collections import Counter
from pathlib import Path

from drops import TINY, Deliver

from ccl import ContinualEncoder

_opened: list[str] | None = None


def _note_opening(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and "week-" in str(arguments[0]):
        _opened.append(os.path.basename(str(arguments[0])))


sys.addaudithook(_note_opening)  # for ever, as Python has it; it listens only where a test asks for it


def _openings(encoder: ContinualEncoder, folder: Path) -> tuple[str, Counter[str]]:
    global _opened
    _opened = []
    (outcome,) = encoder.learn(folder, progress=False)
    found, _opened = Counter(_opened), None
    return outcome.kind, found


def test_a_file_is_opened_once_and_twice_in_a_first_drop(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    first = [f"{number:03d}.png" for number in range(30)]
    # The header first, from which the size is chosen.
    assert _openings(encoder, deliver("week-1")) == ("learned", Counter(first * 2))
    assert _openings(encoder, deliver("week-1")) == ("known", Counter(first))
    mixed = [f"{number:03d}.png" for number in range(10, 50)]  # 20 known, 20 new
    assert _openings(encoder, deliver("week-2", first=10, count=40)) == ("learned", Counter(mixed))
