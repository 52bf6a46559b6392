"""Exceptions that end a command: the user's mistake, and a signal; and words for messages."""

import difflib
import importlib
import re
import signal
import unicodedata
from collections.abc import Collection, Iterable


class UserError(ValueError):
    """Something the user gave is wrong; each argument is a line that says what, and what to do instead.

    >>> try:
    ...     ccl.load_settings("demo", ["epoch=3"])
    ... except ccl.UserError as error:
    ...     print(error)
    unknown setting 'epoch'; did you mean 'epochs'?
    """

    def __str__(self) -> str:
        return masked("\n".join(map(str, self.args)))


class RefusedError(UserError):
    """Parts of a method that don't go together."""


class StoppedError(BaseException):
    """A signal asked the run to stop, and its state is saved. Not an Exception, so that nothing swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """The exit code for a signal, as shells define it: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signal_number


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters (bidi marks), surrogates, breaks of lines
_USER = re.compile(r"(\w://)(?:[^/\s?#'\"]+|[^/\s?#'\":]+:(?!\d+/)[^\s?#'\"]*)@")  # user:password@, also "pass/word"
_SECRET = r"[\w.%-]*(?:token|sig|secret|passw|pwd|key|cred|auth|session)[\w.%-]*|x-(?:amz|goog)-[\w-]+"
_QUERY = re.compile(rf"([?&;#](?:{_SECRET})=)[^&;#\s'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """A text without the credentials that stand in an address: before its host, or in its query."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text)) if "://" in text or "=" in text else text


def printable(text: str, keeps: str = "") -> str:
    """A text, of which something may come from outside, as one line for a terminal: shown, and never obeyed.

    What no reader would see, and breaks of the line, become visible escapes; credentials are masked.
    """
    line = masked(text)
    if line.isprintable():
        return line
    return "".join(
        char if char in keeps or unicodedata.category(char) not in _UNSEEN else char.encode("unicode_escape").decode()
        for char in line
    )


def how_to_install(extra: str) -> str:
    """Advice for a missing package; ccl is not on a package index yet, so it names the folder."""
    return f"in the folder of ccl: pip install '.[{extra}]'"


def counted(number: int, noun: str) -> str:
    """ "1 image", "2,000 images": a number with its noun, for messages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or, where nothing is near, the list of what there is."""
    options = list(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(options[:12])}{', …' if len(options) > 12 else ''}"


def require(packages: Collection[str], extra: str, what: str) -> None:
    """Raise UserError where a required package is missing."""
    for package in packages:
        try:
            importlib.import_module(package)
        except Exception as error:  # a broken installation raises anything
            raise UserError(f"{what} needs {package}, which can't be imported; {how_to_install(extra)}") from error
