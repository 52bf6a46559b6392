"""Lists of values in one argument: names, numbers with ranges, and the values of a setting."""

import re
from collections.abc import Iterable, Sequence

from ccl.errors import UserError

_MAX_NUMBERS = 10_000  # a mistyped range must not fill the memory


def names(text: str | None, option: str) -> list[str]:
    """ "a,b" as its names, each once; [] for an option that is not given."""
    if text is None:
        return []
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UserError(f"{option} takes names joined by commas; got {text!r}")
    return list(dict.fromkeys(found))


def named(text: str | None, option: str, known: Iterable[str]) -> list[str]:
    """As `names`, or "all" for all that are known."""
    return list(known) if text == "all" else names(text, option)


def numbers(text: str | None, option: str) -> list[int]:
    """ "0-5,8" as 0, 1, 2, 3, 4, 5, 8, each once and in the order given; [] for an option that is not given."""
    if text is None:
        return []
    mistake = UserError(f"{option} takes numbers and ranges such as 0-5 or 0,2,7; got {text!r}")
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", part)
        if match is None:
            raise mistake
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MAX_NUMBERS:
            raise mistake
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)


def assignment_lists(texts: Sequence[str]) -> dict[str, list[str]]:
    """Each "key=v1,v2" as the key and its values; commas within brackets belong to a value."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        listed = [value.strip() for value in re.split(r",(?![^\[]*\])", values)]
        if not key or not all(listed):
            example = "--vary memory.per_cluster=5,20"
            raise UserError(f"--vary takes a setting and its values, such as {example}; got {text!r}")
        if key in found:
            raise UserError(f"--vary names {key} twice; join its values by commas")
        found[key] = list(dict.fromkeys(listed))
    return found
