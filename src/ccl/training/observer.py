"""Observers of training: one base class with empty methods, which logs, displays and tests override."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ccl.training.exemplar_selection import Remembered


class Observer:
    """Base class of observers of training; methods in the order of events, steps and epochs counted from 0."""

    def note(self, text: str) -> None:
        """Show one line to the user."""

    def loading(self, done: int, total: int) -> None:
        """Progress of reading the data, in images or bytes; total is 0 where it is not known."""

    def run_begins(self, title: str, sizes: Sequence[int], epochs: int, first_step: int = 0) -> None:
        """The data is there: steps of so many images each, those before `first_step` learned earlier."""

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        """A step begins, or (not `is_new`) resumes."""

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        """One update was made; `share` of the epoch is done."""

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None: ...

    def remembered(self, step: int, what: Remembered) -> None:
        """The rehearsal memory has been filled."""

    def probing(self, done: int, total: int) -> None: ...

    def probed(self, step: int | None, result: Any) -> None:
        """An `evaluation.ProbeResult` after a step, or (None) of the initialisation."""

    def run_ends(self) -> None:
        """Also after an error."""


class Observers(Observer):
    """Several observers as one: each event reaches each of them, in their order."""

    def __init__(self, *observers: Observer) -> None:
        for event in (name for name in vars(Observer) if not name.startswith("_")):
            setattr(self, event, partial(_tell, [getattr(observer, event) for observer in observers]))


def _tell(methods: Sequence[Callable[..., None]], *values: Any, **named: Any) -> None:
    for method in methods:
        method(*values, **named)
