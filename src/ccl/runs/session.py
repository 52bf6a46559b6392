"""A folder in which something is learned, a run or a drop: its status, and checkpoints of all it must remember."""

import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ccl import ranks
from ccl.data.decode_memory import give_back_memory
from ccl.errors import StoppedError, UserError
from ccl.evaluation import AccuracyMatrix
from ccl.loading import dump_settings, validated
from ccl.memory import RehearsalMemory
from ccl.runs.folder_lock import SETTINGS, shown_status
from ccl.runs.run_folder import CHECKPOINTS, RunLog
from ccl.settings import Settings, differences
from ccl.settings_files import parse_yaml
from ccl.training import Learner, Observer, Observers, Progress, SavePoint
from ccl.training.checkpoint import Checkpoint, CheckpointStore, by_part, joined_parts
from ccl.training.stop_signals import StopRequest

if TYPE_CHECKING:
    from ccl.runs.trackers import Tracker

# Saving may take one part in so many of the time; epochs shorter than that are not worth a checkpoint each.
COST_DIVISOR = 50


class Session:
    """All ranks make one; the first alone writes and shows."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        about: Mapping[str, Any],
        display: Observer,
        stop: StopRequest,
        trackers: "Sequence[Tracker]" = (),
    ) -> None:
        self.display, self.stop = display, stop
        self._settings = settings
        self._peak_before = int(shown_status(folder).get("peak_memory_bytes", 0))
        self.log = RunLog(folder, settings, about, trackers)
        self.observer = Observers(self.log, display)
        self.outcome: dict[str, Any] = {}  # what the status says of a run that is complete
        self._store = CheckpointStore(folder / CHECKPOINTS, settings.checkpoint.keep)
        self._parts: dict[str, Learner | RehearsalMemory | AccuracyMatrix] = {}
        self._stamp: dict[str, Any] = {}  # of the checkpoints that are saved
        self._saved_at = time.perf_counter()
        self._cost = 0.0

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Record in status.json how the block ended."""
        try:
            try:
                yield
            except ConnectionError:
                self.stop.raise_if_asked()  # a signal that ended another rank came here too
                raise
        except StoppedError as stopped:
            with suppress(OSError):  # where the disk is full, that is not what the user is to hear of
                self.log.status("stopped", reason=str(stopped), peak_memory_bytes=self._peak())
            raise
        except Exception as error:
            with suppress(OSError):
                self.log.status("failed", reason=str(error))
            raise
        finally:
            self.display.run_ends()
        self.log.status("complete", peak_memory_bytes=self._peak(), **self.outcome)

    def _peak(self) -> int:
        return max(self._peak_before, peak_memory())

    def resume(self, learner: Learner, data: str, others: Mapping[str, AccuracyMatrix] = {}) -> Progress | None:
        """Restore everything from the newest good checkpoint; None where there is none, and all rows are removed.

        `data` is the fingerprint of the images, `others` what is saved beside the learner and its memory.
        """
        self._parts = {"learner": learner, "memory": learner.memory, **others}
        self._stamp = _stamp(self._settings, data)
        if ranks.is_first():
            self._store.clean()
        ranks.wait()
        firsts = ranks.from_first(lambda: self._stamp)
        for name in ("settings", "data"):  # else they would wait for each other in vain
            if self._stamp[name] != firsts[name]:
                raise UserError(f"rank {ranks.rank()} has other {name} than the first; all machines need the same")
        checkpoint = self._store.newest()
        number = 0 if checkpoint is None else checkpoint.number
        largest, negated = ranks.largest(number, -number)  # also: no one writes before all have read
        if largest != -negated:
            raise UserError(
                f"the processes found different checkpoints ({-negated:08d} and {largest:08d}); "
                "--out must be a folder that all machines share"
            )
        for path, reason in self._store.bad:
            self.display.note(f"skipped a bad checkpoint: {path}: {reason}")
        if checkpoint is None:
            self.log.begin()
            return None
        self._refuse_foreign(checkpoint)
        then = checkpoint.about
        changed = {name: [then[name], now] for name, now in self._stamp.items() if then.get(name) not in (None, now)}
        if "data" in changed:
            before, now = changed["data"]
            raise UserError(f"the data is not what this run began with (fingerprint {before}, now {now}); restore it")
        parts = by_part(checkpoint.tensors)
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        if lost := self.log.resume(then["log"], checkpoint.files):
            self.display.note(lost)
        progress = Progress.restored(then["position"], parts["optimizer"])
        self._note_resumed(progress, changed)
        return progress

    def _refuse_foreign(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of a run with other settings; those of before don't have them."""
        if text := checkpoint.files.get(SETTINGS):
            values = parse_yaml(text.decode(), str(checkpoint.folder / SETTINGS))
            theirs = validated(values, written_in=self.log.folder)
            if wrong := differences(theirs, self._settings, " instead of "):
                raise UserError(f"{checkpoint.folder} is of another run ({'; '.join(wrong)}); move it away")

    def _note_resumed(self, progress: Progress, changed: Mapping[str, list[Any]]) -> None:
        """Show where it resumes and what has changed, each [then, now]."""
        for name, title in {"threads": "threads", "torch": "torch", "world_size": "the number of processes"}.items():
            if change := changed.get(name):
                text = f"{title} changed since the checkpoint ({change[0]} -> {change[1]})"
                self.display.note(f"{text}: the outcome will be near, not equal bit for bit")
        where = f"step {progress.step + 1}"
        if progress.phase == "train":
            self.display.note(f"resuming at {where}, epoch {progress.epoch + 1}, batch {progress.batch + 1}")
        else:
            self.display.note(f"resuming after the training of {where}")
        if change := changed.get("epochs"):
            self.display.note(f"epochs changed from {change[0]} to {change[1]}: the steps from here on follow it")
            self.log.row("changed", epochs=change)

    def save(self, progress: Progress, point: SavePoint) -> None:
        """Called by the loop wherever saving is possible: save where it is due, then stop if a signal asked to."""
        waited = time.perf_counter() - self._saved_at
        is_due = {
            "phase": True,
            "epoch": waited >= COST_DIVISOR * self._cost,
            "update": waited >= 60 * self._settings.checkpoint.minutes,
        }[point]
        # Clocks and signals differ between ranks, which must save and stop after the same update.
        asked, is_due_at_first = ranks.largest(self.stop.signal_number or 0, int(is_due and ranks.is_first()))
        if asked or is_due_at_first:
            started = time.perf_counter()
            if ranks.is_first():
                parts = {name: part.state_dict() for name, part in self._parts.items()}
                about = {"position": progress.position(), "log": self.log.state(), **self._stamp}
                tensors = joined_parts(parts | {"optimizer": progress.state_dict()})
                self._store.save(tensors, about, self.log.small_files())
            self._saved_at = time.perf_counter()
            self._cost = self._saved_at - started
        if point == "phase":
            # Tensors of ever other sizes leave holes in the heap: after five steps of CIFAR-100 as large as all in use.
            give_back_memory()
        # Selection and probe change nothing that is not written when they end: there a signal need not wait.
        self.stop.is_immediate = progress.phase != "train"
        if asked or is_due_at_first:  # a signal may have come while it was written
            (asked,) = ranks.largest(self.stop.signal_number or asked)
            if asked:
                raise StoppedError(asked)


def code_hash() -> str:
    """Ten digits that change with any line of this package: a version alone does not separate two working copies."""
    package = Path(__file__).parents[1]
    state = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        state.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:10]


def _stamp(settings: Settings, data_fingerprint: str) -> dict[str, Any]:
    """Facts that a checkpoint records beside its content."""
    return {
        "settings": hashlib.sha256(dump_settings(settings).encode()).hexdigest(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "world_size": ranks.size(),
        "epochs": settings.epochs,
        "data": data_fingerprint,
    }


def peak_memory() -> int:
    """The most memory this process has held, in bytes; 0 where the system does not report it."""
    try:
        # Linux: getrusage reports at least what the parent held when it started this process.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)
