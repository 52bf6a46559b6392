"""The names of files as they are opened, whoever opens them."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_heard: list[tuple[str, list[str]]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    for pattern, names in _heard if event == "open" else ():
        if re.search(pattern, str(arguments[0])):
            names.append(os.path.basename(str(arguments[0])))


sys.addaudithook(_note)  # for ever, as Python has it; it listens only where a test asks for it


@contextmanager
def openings(pattern: str) -> Iterator[list[str]]:
    """Inside, the list grows by every file that is opened whose path this expression is found in."""
    names: list[str] = []
    _heard.append((pattern, names))
    try:
        yield names
    finally:
        _heard.pop()
