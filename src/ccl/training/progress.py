"""How far a stream has been learned: all that the loop itself must remember to go on at the very next batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Phase = Literal["train", "remember", "probe"]


@dataclass
class Progress:
    """The next thing to do, counted from 0, and the optimizer that is at it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    phase: Phase = "train"
    optimizer: torch.optim.SGD | None = None
    loaded_optimizer: dict[int, Tensor] | None = None  # momentum by parameter, waiting for its optimizer

    @property
    def is_new_step(self) -> bool:
        """Nothing of this step has been done yet."""
        return self.phase == "train" and self.epoch == 0 and self.batch == 0

    def position(self) -> dict[str, Any]:
        """As JSON values."""
        return {"step": self.step, "epoch": self.epoch, "batch": self.batch, "phase": self.phase}

    def state_dict(self) -> dict[str, Tensor]:
        """The optimizer's momentum, by the parameter's number."""
        if self.optimizer is None:
            return {str(number): buffer for number, buffer in (self.loaded_optimizer or {}).items()}
        state = self.optimizer.state_dict()["state"]
        buffers = {number: entry["momentum_buffer"] for number, entry in state.items()}
        return {str(number): buffer for number, buffer in buffers.items() if buffer is not None}

    @classmethod
    def restored(cls, position: Mapping[str, Any], state: Mapping[str, Tensor]) -> "Progress":
        """What `position` and `state_dict` described."""
        momentum = {int(number): buffer for number, buffer in state.items()}
        return cls(**position, loaded_optimizer=momentum)

    def take(self, optimizer: torch.optim.SGD, carry_momentum: bool) -> torch.optim.SGD:
        """Make this the optimizer of the step; loaded momentum goes into it if it is of this step, or carried over."""
        if self.loaded_optimizer and (carry_momentum or not self.is_new_step):
            state = optimizer.state_dict()
            state["state"] = {number: {"momentum_buffer": buffer} for number, buffer in self.loaded_optimizer.items()}
            optimizer.load_state_dict(state)
        self.optimizer, self.loaded_optimizer = optimizer, None
        return optimizer
