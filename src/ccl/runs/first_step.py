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
from ccl.errors import UserError
from ccl.run_files import METRICS
from ccl.runs.protocol import code_hash
from ccl.settings import Settings, beginning, has_common_beginning
from ccl.training import Progress
from ccl.training.checkpoint import Checkpoint, CheckpointStore


class SharedFirstStep:
    """The place in a folder for the first step of runs that begin as this one does."""

    def __init__(self, folder: Path, settings: Settings, data: str, device: torch.device) -> None:
        machine = (torch.__version__, torch.backends.cpu.get_cpu_capability(), device.type, torch.get_num_threads())
        about = json.dumps([beginning(settings), data, code_hash(), *machine])
        self.folder = folder / hashlib.sha256(about.encode()).hexdigest()[:16]
        self.is_open = has_common_beginning(settings) and ranks.size() == 1

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
