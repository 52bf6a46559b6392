"""The plan of a step: epochs, batches, the optimizer and its learning-rate schedule."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ccl.encoders import Encoder
from ccl.encoders.stages import stages
from ccl.part import Part
from ccl.section import CountOrZero, Fraction, Positive, Section, Weight

CONSTANT_RATE = "constant_rate"  # of a group of parameters: whether its rate leaves the schedule alone
RATE_SCALE = "rate_scale"  # of a group of parameters: its share of the rate


class OptimizerOptions(Section):
    """What moves the weights; its schedule restarts at each step."""

    name: Literal["sgd", "lars", "adamw"] = "sgd"  # the optimizer
    learning_rate: Positive = 0.06  # where the schedule of each step begins
    momentum: Fraction = 0.9  # adamw: its first beta
    beta2: Fraction = 0.999  # adamw only
    weight_decay: Weight = 5e-4  # the strength of l2
    # The rate of a stage of the backbone is so much of that of the stage after it, and the head has the full rate
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    decay_norms: bool = True  # false: no weight decay on biases and batch norm; lars never has one there
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate over a step
    warmup_epochs: CountOrZero = 0  # of each step, over which the learning rate rises linearly


@dataclass(frozen=True)
class Plan:
    """The plan of a step, the same for each."""

    epochs: int
    batch_size: int
    optimizer: OptimizerOptions = OptimizerOptions()
    batch_multiple: int = 1  # every batch is a multiple of this: the groups of split batch norm
    seed: int = 0
    statistics: Literal["running", "remembered", "accumulated"] = "running"  # as `EncoderOptions.statistics`

    def make_optimizer(self, learner: nn.Module) -> torch.optim.Optimizer:
        """A fresh optimizer of all that a learner trains, for a new step."""
        # Differs: the authors' code carries momentum over from step to step.
        options, momentum = self.optimizer, self.optimizer.momentum
        rate, decay = options.learning_rate, options.weight_decay
        groups = self._parameter_groups(learner)
        # All of a step's arithmetic in one pass over the weights; torch has that for these devices.
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in learner.parameters())
        if options.name == "adamw":
            betas = (momentum, options.beta2)
            return torch.optim.AdamW(groups, rate, betas=betas, weight_decay=decay, fused=fused)
        if options.name == "lars":
            return LARS(groups, rate, momentum=momentum, weight_decay=decay)
        sgd = torch.optim.SGD(groups, rate, momentum=momentum, weight_decay=decay, fused=fused)
        sgd.register_step_pre_hook(_begin_late_momenta)
        return sgd

    def _parameter_groups(self, learner: nn.Module) -> list[dict[str, Any]]:
        """One group in the learner's order; apart are what doesn't decay, `Part.constant_rate` and decayed stages."""
        parts = [part for part in learner.modules() if isinstance(part, Part)]
        apart = [part.get_submodule(name) for part in parts for name in part.constant_rate]
        constant = {parameter for module in apart for parameter in module.parameters()}
        scales = _scales(learner, self.optimizer.layer_decay) if self.optimizer.layer_decay < 1.0 else {}
        groups: dict[tuple[bool, bool, float], dict[str, Any]] = {}  # by: is at a constant rate, doesn't decay, scale
        for parameter in learner.parameters():
            if parameter.requires_grad:
                scale = scales.get(parameter, 1.0)
                kind = (parameter in constant, parameter.ndim < 2 and not self.optimizer.decay_norms, scale)
                new = {"params": [], CONSTANT_RATE: kind[0], RATE_SCALE: scale}
                groups.setdefault(kind, new)["params"].append(parameter)
        for (_, is_exempt, _), group in groups.items():
            group |= {"weight_decay": 0.0} if is_exempt else {}
        return [groups[kind] for kind in sorted(groups)]

    def set_rate(self, optimizer: torch.optim.Optimizer, epoch: int, share: float = 1.0) -> None:
        """Give each group of parameters its rate of the update with which `share` of an epoch is done."""
        rate = self.learning_rate_at(epoch, share)
        for group in optimizer.param_groups:
            group["lr"] = (self.optimizer.learning_rate if group[CONSTANT_RATE] else rate) * group[RATE_SCALE]

    def learning_rate_at(self, epoch: int, share: float = 1.0) -> float:
        """The rate of the update with which `share` of an epoch is done; a cosine moves by the epoch, as in MoCo."""
        # Differs: solo-learn's and CaSSLe's warm-up rises from 0.003, here from nothing.
        highest, warmup = self.optimizer.learning_rate, self.optimizer.warmup_epochs
        if epoch < warmup:
            return highest * (epoch + share) / warmup
        if self.optimizer.schedule == "constant":
            return highest
        done = (epoch - warmup) / (self.epochs - warmup)
        return highest * 0.5 * (1.0 + math.cos(math.pi * done))


def _scales(learner: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The share of the rate of each parameter of the backbone, the less the earlier its stage."""
    encoder = learner.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    found = stages(encoder.backbone)
    parameters = dict(encoder.backbone.named_parameters())
    return {
        parameters[name]: decay ** (len(found) - number)
        for number, stage in enumerate(found)
        for name in stage.parameters
    }


def _begin_late_momenta(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Give a weight whose first gradient comes later than others' a momentum of zero: torch's fused form needs all."""
    for group in optimizer.param_groups:
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        known = [optimizer.state[parameter].get("momentum_buffer") is not None for parameter in moved]
        if group["momentum"] and any(known) and not all(known):
            for parameter, has_one in zip(moved, known, strict=True):
                if not has_one:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


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
