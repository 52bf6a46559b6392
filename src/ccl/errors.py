"""Exceptions that end a command: the user's mistake, and a signal; and words for messages."""

import difflib
import importlib
import signal
from collections.abc import Collection, Iterable


class UserError(ValueError):
    """Something the user gave is wrong; each line of the message says what, and what to do instead.

    >>> try:
    ...     ccl.load_settings("demo", ["epoch=3"])
    ... except ccl.UserError as error:
    ...     print(error)
    unknown setting 'epoch'; did you mean 'epochs'?
    """


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
