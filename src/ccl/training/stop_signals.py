"""SIGTERM and Ctrl-C: finish the batch, save, leave; a second Ctrl-C leaves at once."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Self

from ccl.errors import StoppedError
from ccl.views.worker_pool import while_waiting

_PATIENCE = 5.0  # seconds after a signal in which the batch that is waited for must come


class StopRequest:
    """Context manager: records a signal; with `is_immediate` it raises at once, as nothing unsaved is lost."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.is_immediate = True
        self._asked_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        while_waiting.append(self._leave_if_late)
        return self

    def __exit__(self, *_: object) -> None:
        while_waiting.remove(self._leave_if_late)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            os._exit(128 + number)
        # A second SIGTERM, as Slurm sends to a job and to its steps, must not end the writing down of the first.
        is_first, self.signal_number = self.signal_number is None, number
        self._asked_at = time.monotonic() if is_first else self._asked_at
        if self.is_immediate and is_first:
            raise StoppedError(number)

    def _leave_if_late(self) -> None:
        """What was saved last stays: a batch that does not come would hold the command for ever."""
        if time.monotonic() - self._asked_at > _PATIENCE:
            self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Raise StoppedError if a signal has arrived; call it once the state is saved."""
        if self.signal_number is not None:
            raise StoppedError(self.signal_number)
