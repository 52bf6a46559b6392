"""Everything a run must remember, as one checkpoint: when it is written, and how it comes back."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ccl import ranks
from ccl.errors import StoppedError, UserError
from ccl.evaluation import AccuracyMatrix
from ccl.loading import dump_settings
from ccl.report import RunLog
from ccl.running.silence import SilentLog
from ccl.settings import Settings
from ccl.training import Learner, Moment, Progress
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stopping import StopRequest

# Saving may take one part in so many of the time; epochs shorter than that are not worth a checkpoint each.
COST_DIVISOR = 50


class RunState:
    """The learner, its memory, the matrix and the log of one run, saved and restored together."""

    def __init__(
        self,
        learner: Learner,
        matrix: AccuracyMatrix,
        log: RunLog | SilentLog,
        store: CheckpointStore,
        *,
        minutes: float,
        stop: StopRequest,
        stamp: Mapping[str, Any],
    ) -> None:
        self.learner, self.matrix, self.log, self.store = learner, matrix, log, store
        self.seconds = 60 * minutes
        self.stop = stop
        self.stamp = dict(stamp)
        self._restored_stamp: dict[str, Any] = {}  # of the checkpoint that was restored
        self._saved_at = time.perf_counter()
        self._cost = 0.0

    def save(self, progress: Progress, moment: Moment) -> None:
        """Called by the loop wherever saving is possible: save where it is due, then stop if a signal asked to."""
        waited = time.perf_counter() - self._saved_at
        is_due = {
            "phase": True,
            "epoch": waited >= COST_DIVISOR * self._cost,
            "update": waited >= self.seconds,
        }[moment]
        # Clocks and signals differ between ranks, which must save and stop after the same update.
        asked, is_due_at_first = ranks.largest(self.stop.signal_number or 0, int(is_due and ranks.is_first()))
        if asked or is_due_at_first:
            self._write(progress)
        # Selection and probe change nothing that is not written when they end: there a signal need not wait.
        self.stop.is_immediate = progress.phase != "train"
        if asked or is_due_at_first:  # a signal may have come while it was written
            (asked,) = ranks.largest(self.stop.signal_number or asked)
            if asked:
                raise StoppedError(asked)

    def _write(self, progress: Progress) -> None:
        started = time.perf_counter()
        if ranks.is_first():
            self.store.save(*self._content(progress))
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def _content(self, progress: Progress) -> tuple[dict[str, Tensor], dict[str, Any]]:
        parts = {
            "learner": self.learner.state_dict(),
            "memory": self.learner.memory.state_dict(),
            "optimizer": progress.state_dict(),
            "accuracy": self.matrix.state_dict(),
        }
        tensors = {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}
        about = {"position": progress.position(), "log": self.log.state(), **self.stamp}
        return tensors, about

    def restore(self) -> Progress | None:
        """Bring everything back to the newest good checkpoint; None where there is none."""
        if ranks.is_first():
            self.store.clean()
        ranks.wait()
        checkpoint = self.store.newest()
        _refuse_disagreement(0 if checkpoint is None else checkpoint.number)  # also: no one writes before all have read
        if checkpoint is None:
            return None

        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, value in checkpoint.tensors.items():
            owner, _, name = key.partition("/")
            parts[owner][name] = value
        self.learner.load_state_dict(parts["learner"])
        self.learner.memory.load_state_dict(parts["memory"])
        self.matrix.load_state_dict(parts["accuracy"])
        self.log.go_on(checkpoint.about["log"])
        self._restored_stamp = checkpoint.about
        return Progress.restored(checkpoint.about["position"], parts["optimizer"])

    def changed(self, name: str) -> list[Any] | None:
        """[then, now] where the restored checkpoint was made with another value; None where equal or not told."""
        then, now = self._restored_stamp.get(name), self.stamp[name]
        return None if then is None or then == now else [then, now]


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
