"""The one exception for what the user can mend: shown as a line per mistake, exit code 2."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave is wrong; each line of the message says what, and what to do instead."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or, where nothing is near, the list of what there is."""
    options = list(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(options[:12])}{', …' if len(options) > 12 else ''}"
