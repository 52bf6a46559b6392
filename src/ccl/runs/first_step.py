"""The first step, shared between runs that begin alike: where there is no past yet, most strategies do the same.

A run that finds the end of its first step's training in the shared folder takes it from there, with its rows; one that
does not leaves it there for others. The outcome is the same to the bit (tests/integration/runs/test_first_step.py).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from ccl import ranks
from ccl.catalogue import COMPOSITIONS, RETENTION, WEIGHT_RULES, foreign_kind
from ccl.errors import UserError
from ccl.run_files import METRICS
from ccl.runs.protocol import code_hash
from ccl.settings import MAY_CHANGE, Settings
from ccl.training import Progress
from ccl.training.checkpoint import Checkpoint, CheckpointStore

# What says how the past is kept, and nothing else.
_OF_THE_PAST = {"strategy", "retention", "composition", "weight_rule", "weights", "memory"}
_OF_THE_PAST |= {*RETENTION, *COMPOSITIONS, *WEIGHT_RULES}


def can_share(settings: Settings) -> bool:
    """Whether all that a run has learned when its first step ends is the encoder and the state of the objective."""
    method = settings.method
    parts = [RETENTION[name] for name in method.retention]
    parts += [WEIGHT_RULES[method.weight_rule]] if method.weight_rule else []
    # A start is a past already in the first step, and nothing here knows whether code of others has changed.
    is_ours = settings.encoder.weights is None and foreign_kind(settings.encoder.backbone) is None
    if settings.probe.network == "teacher":  # what is shared holds no teacher of the first step
        return False
    return is_ours and not method.all_at_once and not any(part.learns_in_first_step for part in parts)


def beginning(settings: Settings) -> str:
    """A name for what two runs must have in common to share their first step, beside data and machine."""
    own = settings.model_dump(mode="json", exclude={*_OF_THE_PAST, "trackers", "checkpoint"})
    for name in MAY_CHANGE - {"epochs", "threads"}:
        section, _, key = name.partition(".")
        if key and section in own:
            own[section].pop(key, None)
    own["encoder"].pop("statistics")  # estimated when the training of a step has ended
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]


class SharedFirstStep:
    """The place in a folder for the first step of runs that begin as this one does."""

    def __init__(self, folder: Path, settings: Settings, data: str, device: torch.device) -> None:
        machine = (torch.__version__, torch.backends.cpu.get_cpu_capability(), device.type, torch.get_num_threads())
        about = json.dumps([beginning(settings), data, code_hash(), *machine])
        self.folder = folder / hashlib.sha256(about.encode()).hexdigest()[:16]
        self.is_open = can_share(settings) and ranks.size() == 1

    def take(self) -> Checkpoint | None:
        """The end of the first step's training, if another run has left it; a damaged one is as none."""
        if not self.is_open:
            return None
        try:
            return CheckpointStore(self.folder).newest()
        except UserError:
            return None

    def leave(self, progress: Progress, content: tuple[Mapping[str, Tensor], Mapping[str, Any]], run: Path) -> None:
        """Leave the state of a run where its first step's training has ended, unless one is there."""
        if not self.is_open or (progress.step, progress.phase) != (0, "remember"):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder.with_suffix(".lock")):
            if self.take() is None:
                rows = (run / METRICS).read_bytes()[: content[1]["log"]["bytes"]]
                CheckpointStore(self.folder, keep=1).save(*content, files={METRICS: rows})
