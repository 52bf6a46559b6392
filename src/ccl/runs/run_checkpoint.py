"""Everything a run must remember, as one checkpoint: when it is written, and how it comes back."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ccl import ranks
from ccl.errors import StoppedError, UserError
from ccl.loading import dump_settings
from ccl.runs.process_memory import give_back
from ccl.runs.run_folder import Log
from ccl.settings import Settings
from ccl.training import Learner, Observer, Progress, SavePoint
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stop_signals import StopRequest

# Saving may take one part in so many of the time; epochs shorter than that are not worth a checkpoint each.
COST_DIVISOR = 50


class Stateful(Protocol):
    """Whatever comes and goes as plain tensors."""

    def state_dict(self) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> Any: ...


class RunState:
    """The learner, its memory, the log and what else a run has, by names, saved and restored together."""

    def __init__(
        self,
        learner: Learner,
        log: Log,
        store: CheckpointStore,
        *,
        others: Mapping[str, Stateful],
        minutes: float,
        stop: StopRequest,
        stamp: Mapping[str, Any],
    ) -> None:
        self.log, self.store = log, store
        self._parts: dict[str, Stateful] = {"learner": learner, "memory": learner.memory, **others}
        self.seconds = 60 * minutes
        self.stop = stop
        self.stamp = dict(stamp)
        self._restored_stamp: dict[str, Any] = {}  # of the checkpoint that was restored
        self._saved_at = time.perf_counter()
        self._cost = 0.0

    def save(self, progress: Progress, point: SavePoint) -> None:
        """Called by the loop wherever saving is possible: save where it is due, then stop if a signal asked to."""
        waited = time.perf_counter() - self._saved_at
        is_due = {
            "phase": True,
            "epoch": waited >= COST_DIVISOR * self._cost,
            "update": waited >= self.seconds,
        }[point]
        # Clocks and signals differ between ranks, which must save and stop after the same update.
        asked, is_due_at_first = ranks.largest(self.stop.signal_number or 0, int(is_due and ranks.is_first()))
        if asked or is_due_at_first:
            self._write(progress)
        if point == "phase":
            give_back()
        # Selection and probe change nothing that is not written when they end: there a signal need not wait.
        self.stop.is_immediate = progress.phase != "train"
        if asked or is_due_at_first:  # a signal may have come while it was written
            (asked,) = ranks.largest(self.stop.signal_number or asked)
            if asked:
                raise StoppedError(asked)

    def _write(self, progress: Progress) -> None:
        started = time.perf_counter()
        if ranks.is_first():
            self.store.save(*self.content(progress))
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def content(self, progress: Progress) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All tensors, and what a checkpoint says beside them."""
        parts = {name: part.state_dict() for name, part in self._parts.items()} | {"optimizer": progress.state_dict()}
        about = {"position": progress.position(), "log": self.log.state(), **self.stamp}
        return joined_parts(parts), about

    def restore(self) -> Progress | None:
        """Bring everything back to the newest good checkpoint; None where there is none."""
        if ranks.is_first():
            self.store.clean()
        ranks.wait()
        _refuse_differences(self.stamp)
        checkpoint = self.store.newest()
        _refuse_disagreement(0 if checkpoint is None else checkpoint.number)  # also: no one writes before all have read
        if checkpoint is None:
            return None

        parts = by_part(checkpoint.tensors)
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        self.log.resume(checkpoint.about["log"])
        self._restored_stamp = checkpoint.about
        return Progress.restored(checkpoint.about["position"], parts["optimizer"])

    def changed(self, name: str) -> list[Any] | None:
        """[then, now] where the restored checkpoint was made with another value; None where equal or not known."""
        then, now = self._restored_stamp.get(name), self.stamp[name]
        return None if then is None or then == now else [then, now]


def joined_parts(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The state of each part as a checkpoint's tensors "part/name"."""
    return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A checkpoint's tensors "part/name" by part; one that is not there is empty."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = value
    return parts


def resume(state: RunState, display: Observer) -> Progress | None:
    """Restore the newest good checkpoint and note it; None to begin at the beginning."""
    progress = state.restore()
    for path, reason in state.store.bad:
        display.note(f"skipped a bad checkpoint: {path}: {reason}")
    if progress is None:
        return None
    if change := state.changed("data"):
        raise UserError(
            f"the data is not what this run began with (fingerprint {change[0]}, now {change[1]}); restore it"
        )
    for name, title in {"threads": "threads", "torch": "torch", "world_size": "the number of processes"}.items():
        if change := state.changed(name):
            text = f"{title} changed since the checkpoint ({change[0]} -> {change[1]})"
            display.note(f"{text}: the outcome will be near, not equal bit for bit")
    where = f"step {progress.step + 1}"
    if progress.phase == "train":
        display.note(f"resuming at {where}, epoch {progress.epoch + 1}, batch {progress.batch + 1}")
    else:
        display.note(f"resuming after the training of {where}")
    return progress


def _refuse_differences(made: Mapping[str, Any]) -> None:
    """All ranks must have read the same settings and data: else they would wait for each other in vain."""
    firsts = ranks.from_first(lambda: dict(made))
    for name in ("settings", "data"):
        if made[name] != firsts[name]:
            raise UserError(f"rank {ranks.rank()} has other {name} than the first; all machines need the same")


def _refuse_disagreement(number: int) -> None:
    largest, negated = ranks.largest(number, -number)
    if largest != -negated:
        raise UserError(
            f"the processes found different checkpoints ({-negated:08d} and {largest:08d}); "
            "--out must be a folder that all machines share"
        )


def stamp(settings: Settings, data_fingerprint: str) -> dict[str, Any]:
    """What a checkpoint says of its making beside its content."""
    return {
        "settings": hashlib.sha256(dump_settings(settings).encode()).hexdigest(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "world_size": ranks.size(),
        "epochs": settings.epochs,
        "data": data_fingerprint,
    }
