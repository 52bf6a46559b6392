"""The position in a stream: all state of the loop, to resume at the very next batch."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Phase = Literal["train", "remember", "probe"]
OptimizerState = dict[int, dict[str, Tensor]]  # by the parameter's number, then by name
_FIRST_NAME = "momentum_buffer"  # all that checkpoints held before optimizers other than SGD


@dataclass
class Progress:
    """Step, epoch and batch to do next, counted from 0, and the step's optimizer."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    phase: Phase = "train"
    optimizer: torch.optim.Optimizer | None = None
    loaded_optimizer: OptimizerState | None = None  # waiting for its optimizer

    @property
    def is_new_step(self) -> bool:
        """Whether nothing of this step has been done yet."""
        return self.phase == "train" and self.epoch == 0 and self.batch == 0

    def position(self) -> dict[str, Any]:
        """As JSON values."""
        return {"step": self.step, "epoch": self.epoch, "batch": self.batch, "phase": self.phase}

    def state_dict(self) -> dict[str, Tensor]:
        """The optimizer's tensors by "number.name"."""
        state: OptimizerState = self.loaded_optimizer or {}
        if self.optimizer is not None:
            state = self.optimizer.state_dict()["state"]
        tensors = {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}
        return {name: value for name, value in tensors.items() if value is not None}  # SGD without momentum has None

    @classmethod
    def restored(cls, position: Mapping[str, Any], state: Mapping[str, Tensor]) -> "Progress":
        """The `Progress` that `position` and `state_dict` describe."""
        loaded: OptimizerState = defaultdict(dict)
        for key, value in state.items():
            number, _, name = key.partition(".")
            loaded[int(number)][name or _FIRST_NAME] = value
        return cls(**position, loaded_optimizer=dict(loaded))

    def take(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Make this the optimizer of the step; a loaded state goes into it if it is of this step."""
        if self.loaded_optimizer and not self.is_new_step:
            optimizer.load_state_dict(optimizer.state_dict() | {"state": self.loaded_optimizer})
            _lay_out_as_parameters(optimizer)
        self.optimizer, self.loaded_optimizer = optimizer, None
        return optimizer


def _lay_out_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Bring the state in the memory format of the weights: a fused step reads both as they lie in memory."""
    for parameter, entry in optimizer.state.items():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entry[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
