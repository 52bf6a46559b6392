"""The number format of forward passes inside `Encoder`: float32, bfloat16, or float16 with scaled losses."""

import functools
import signal
import subprocess
import sys

import torch
from torch import Tensor, nn

from ccl.errors import UserError

_TRIAL_SECONDS = 120
# A forward and a backward pass through the layers that encoders are made of, in sizes that wake the fast kernels.
_TRIAL = """
import sys, torch
from torch import nn
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
layers = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 256, 3, stride=2), nn.ReLU()]
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 256)).to(device)
with torch.autocast(device, dtype):
    out = network(torch.randn(32, 3, 32, 32, device=device))
out.float().square().mean().backward()
sys.exit(0 if all(bool(p.grad.isfinite().all()) for p in network.parameters()) else "gradients are not finite")
"""


def choose(precision: str, device: torch.device) -> torch.dtype:
    """The format for "auto", or the one asked for, once it is known to work; else a UserError with advice."""
    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if _has_bfloat16() else torch.float16
    dtype: torch.dtype = getattr(torch, precision)
    if device.type == "cuda" and dtype is torch.bfloat16 and not _has_bfloat16():
        raise UserError("this GPU has no bfloat16; try precision=float16, or auto, which takes it here")
    if device.type != "cuda" and dtype is not torch.float32:
        trouble = trouble_with(precision, device.type)
        if trouble is not None:
            raise UserError(
                f"precision {precision} fails on this {device.type}: {trouble}; try precision=float32 or auto"
            )
    return dtype


def _has_bfloat16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@functools.cache
def trouble_with(precision: str, device_type: str) -> str | None:
    """The fault of a child process that trains in this format here; None if there is none."""
    # A CPU may advertise instructions that it then refuses, which kills the process: no exception could be caught.
    try:
        arguments = [sys.executable, "-P", "-c", _TRIAL, device_type, precision]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_TRIAL_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return f"a trial in a process of its own did not end within {_TRIAL_SECONDS} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"a trial in a process of its own died of {signal.Signals(-done.returncode).name}"
    return f"a trial in a process of its own failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"


class LossScaler(nn.Module):
    """Scales float16 losses so that small gradients survive; its scale is part of the learner's state."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._scaler = torch.amp.GradScaler(device_type)

    def scaled(self, total: Tensor) -> Tensor:
        """The loss to take gradients of."""
        return self._scaler.scale(total)

    def unscale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Bring the gradients back to their size; False if they overflowed: leave them, the scale has been lowered."""
        before = self._scaler.get_scale()
        self._scaler.unscale_(optimizer)
        self._scaler.update()
        after = self._scaler.get_scale()
        # A scale below 1 makes gradients smaller than they are: what still overflows is not the scale's doing.
        return after >= before or after < 1

    def get_extra_state(self) -> Tensor:
        state = self._scaler.state_dict()
        return torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        scale, tracker = state.tolist()
        self._scaler.load_state_dict(self._scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)})
