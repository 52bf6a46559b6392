"""A folder in which something is learned, be it a run or a drop: its log, its checkpoints, its status."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ccl import ranks
from ccl.errors import StoppedError
from ccl.run_files import CHECKPOINTS, read_status
from ccl.runs.process_memory import peak_memory
from ccl.runs.run_checkpoint import RunState, Stateful, resume, stamp
from ccl.runs.run_folder import Log, RunLog
from ccl.runs.trackers import Tracker
from ccl.settings import Settings
from ccl.training import Learner, Observer, Observers, Progress, SavePoint
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stop_signals import StopRequest


class Session:
    """The first rank writes and shows; the others have a log and a display that do nothing."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        about: Mapping[str, Any],
        display: Observer,
        stop: StopRequest,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self.settings, self.display, self.stop = settings, display, stop
        self._peak_before = int(read_status(folder).get("peak_memory_bytes", 0))
        self.log = RunLog(folder, settings, about, trackers) if ranks.is_first() else Log(folder)
        self.observer = Observers(self.log, display)
        self.outcome: dict[str, Any] = {}  # what the status says of a run that is complete
        self._state: RunState | None = None

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Inside, something is learned; how it ends comes to stand in the folder's status."""
        try:
            with self.stop.instead_of(ConnectionError):  # a signal that ended another rank came here too
                yield
        except StoppedError as stopped:
            self.log.status("stopped", reason=str(stopped), peak_memory_bytes=self._peak())
            raise
        except Exception as error:
            self.log.status("failed", reason=str(error))
            raise
        finally:
            self.display.run_ends()
        self.log.status("complete", peak_memory_bytes=self._peak(), **self.outcome)

    def resume(self, learner: Learner, data: str, others: Mapping[str, Stateful] = {}) -> Progress | None:
        """Restore everything from the newest good checkpoint; None where there is none, and all rows are removed.

        `data` is the fingerprint of the images, `others` what is saved beside the learner and its memory.
        """
        options = self.settings.checkpoint
        store = CheckpointStore(self.log.folder / CHECKPOINTS, options.keep)
        made = stamp(self.settings, data)
        self._state = RunState(
            learner, self.log, store, others=others, minutes=options.minutes, stop=self.stop, stamp=made
        )
        progress = resume(self._state, self.display)
        if progress is None:
            self.log.begin()
        elif change := self._state.changed("epochs"):
            self.display.note(f"epochs changed from {change[0]} to {change[1]}: the steps from here on follow it")
            self.log.row("changed", epochs=change)
        return progress

    def save(self, progress: Progress, point: SavePoint) -> None:
        """Save if it is due, and stop if a signal has come."""
        assert self._state is not None, "resume comes first"
        self._state.save(progress, point)

    def _peak(self) -> int:
        return max(self._peak_before, peak_memory())
