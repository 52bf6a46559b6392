"""LARS: SGD whose step of a layer is proportional to the layer's own norm, for large batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class LARS(torch.optim.Optimizer):
    """You, Gitman and Ginsburg, 2017: the rate of a weight w is trust · ‖w‖ / (‖∇‖ + decay · ‖w‖) times the global one.

    As the field's self-supervised recipes have it: that factor is clipped so that no layer moves faster than with SGD,
    and parameters of one dimension (biases, norms) are plain SGD without decay.
    """

    def __init__(
        self,
        params: Iterable[dict[str, object]] | Iterable[torch.Tensor],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.02,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        assert closure is None, "gradients are computed by the caller"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad
        if parameter.ndim > 1:
            norm, slope = parameter.norm(), gradient.norm()
            factor = group["trust"] * norm / (slope + group["weight_decay"] * norm + 1e-8) / group["lr"]
            factor = torch.where((norm > 0) & (slope > 0), factor.clamp(max=1.0), torch.ones_like(factor))
            gradient = gradient.add(parameter, alpha=group["weight_decay"]).mul_(factor)
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = gradient.clone()
        else:
            state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.add_(state["momentum_buffer"], alpha=-group["lr"])
