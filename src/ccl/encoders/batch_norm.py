"""Batch norm in groups, so that a query and its key can't recognise each other, or over all ranks, on any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccl import ranks
from ccl.errors import UserError

Network = TypeVar("Network", bound=nn.Module)


class SplitBatchNorm(_BatchNorm):
    """Batch norm whose statistics in training are those of `num_groups` groups; image n is in group n mod num_groups.

    A `synchronised` one has a single group, of the rows of all ranks. Running statistics follow the mean over groups.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, num_groups: int = 1, synchronised: bool = False, **options: Any) -> None:
        super().__init__(num_features, **options)
        assert num_groups == 1 or not synchronised
        self.num_groups = num_groups
        self.synchronised = synchronised
        self.after: nn.Module = nn.Identity()  # what a norm of others does to its outcome: timm's have an activation
        self.places: Tensor | None = None  # (rows,): which image of the batch each shows, if not that of its number

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's own name)
        """Rows (N, C) and images (N, C, H, W) alike."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training or (self.num_groups == 1 and not self.synchronised):
            return cast(Tensor, self.after(super().forward(input)))
        self.num_batches_tracked.add_(1)
        return cast(Tensor, self.after(self._over_ranks(input) if self.synchronised else self._by_groups(input)))

    @property
    def _share(self) -> float:
        """How far running statistics move towards a batch's."""
        return 0.1 if self.momentum is None else self.momentum

    def _by_groups(self, images: Tensor) -> Tensor:
        num, channels, *sides = images.shape
        are_equal = self.places is None and num % self.num_groups == 0
        groups = self.num_groups if are_equal else min(self.num_groups, num)
        mean, var = self.running_mean.repeat(groups), self.running_var.repeat(groups)  # (groups·C,)
        if are_equal:  # they lie side by side as channels, and one call serves all
            side_by_side = images.reshape(num // groups, groups * channels, *sides)
            output = self._normalise(side_by_side, mean, var, groups).reshape(num, channels, *sides)
        else:  # as when a few plain old images ride along: the same statistics, a call for each group
            output = torch.empty_like(images)
            places = torch.arange(num, device=images.device) if self.places is None else self.places
            for group in range(groups):
                part = slice(group * channels, (group + 1) * channels)
                rows = torch.nonzero(places % groups == group).flatten()
                output[rows] = self._normalise(images[rows], mean[part], var[part], 1)
        for running, found in ((self.running_mean, mean), (self.running_var, var)):
            running.copy_(found.reshape(-1, channels).mean(dim=0))
        return output

    def _over_ranks(self, images: Tensor) -> Tensor:
        """The rows of all ranks are one group."""
        normed, mean, var = normalised_over_ranks(images, self.weight, self.bias, self.eps)
        for running, found in ((self.running_mean, mean), (self.running_var, var)):
            running.lerp_(found.to(running.dtype), self._share)
        return normed

    def _normalise(self, images: Tensor, mean: Tensor, var: Tensor, repeat: int) -> Tensor:
        weight = self.weight.repeat(repeat) if self.affine else None
        bias = self.bias.repeat(repeat) if self.affine else None
        return F.batch_norm(images, mean, var, weight, bias, True, self._share, self.eps)


def split_batch_norm(module: Network, num_groups: int, synchronised: bool = False) -> Network:
    """Split every batch norm below a module in place, or make it one for all ranks; names and weights stay."""
    for name, child in module.named_children() if num_groups > 1 or synchronised else ():
        if isinstance(child, _BatchNorm) and not isinstance(child, SplitBatchNorm):
            setattr(module, name, _split(child, num_groups, synchronised))
        else:
            split_batch_norm(child, num_groups, synchronised)
    return module


def _split(norm: _BatchNorm, num_groups: int, synchronised: bool) -> SplitBatchNorm:
    options: dict[str, Any] = {"eps": norm.eps, "momentum": norm.momentum, "affine": norm.affine}
    split = SplitBatchNorm(norm.num_features, num_groups, synchronised, **options)
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d):
        # timm's norms end in `drop` and `act`; of another kind nobody knows what it does beside normalising.
        after = [getattr(norm, name, None) for name in ("drop", "act")]
        if not all(isinstance(part, nn.Module) and not list(part.parameters()) for part in after):
            raise UserError(
                f"encoder.batch_norm_groups {num_groups}: {type(norm).__name__} is not a batch norm that can be split; "
                "set encoder.batch_norm_groups=1"
            )
        split.after = nn.Sequential(*cast(list[nn.Module], after))
    split.load_state_dict(norm.state_dict())
    return split.train(norm.training)


@contextmanager
def placed(network: nn.Module, places: Tensor | None) -> Iterator[None]:
    """Context manager: row i of a batch belongs to the group of image places[i], (rows,); None: of image i."""
    norms = [part for part in network.modules() if isinstance(part, SplitBatchNorm)]
    for part in norms:
        part.places = places
    try:
        yield
    finally:
        for part in norms:
            part.places = None


def normalised_over_ranks(rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Rows (N, C) or (N, C, H, W), normalised, with mean (C,) and unbiased variance (C,) of all ranks' rows."""
    normed, mean, variance = _Normalise.apply(rows, eps)  # type: ignore[no-untyped-call]
    shape = _shape(rows)
    normed = normed if weight is None else normed * weight.view(shape)
    normed = normed if bias is None else normed + bias.view(shape)
    return normed.to(rows.dtype), mean, variance


def _shape(rows: Tensor) -> tuple[int, ...]:
    """The shape that broadcasts a vector (C,) over rows."""
    return (1, -1, *(1 for _ in rows.shape[2:]))


class _Normalise(torch.autograd.Function):
    """(x − μ) / σ of all ranks' rows. One message forwards, one backwards: other ranks' losses read our statistics."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        shape, dims = _shape(rows), [dim for dim in range(rows.ndim) if dim != 1]
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        # Squares around a centre that all ranks share would need a second message; float64 needs none.
        exact = wide.double()
        count = exact.new_tensor([rows.numel() // rows.shape[1]])
        sums = ranks.total(torch.cat([exact.sum(dims), exact.square().sum(dims), count]))
        count, channels = sums[-1], rows.shape[1]
        mean = sums[:channels] / count  # (C,)
        variance = (sums[channels:-1] / count - mean.square()).clamp(min=0.0)  # (C,)
        scale = (variance + eps).rsqrt().to(wide.dtype)
        normed = (wide - mean.to(wide.dtype).view(shape)) * scale.view(shape)
        ctx.save_for_backward(normed, scale, count)
        unbiased = variance * (count / (count - 1).clamp(min=1.0))
        ctx.mark_non_differentiable(mean, unbiased)
        return normed, mean, unbiased

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normed, scale, count = ctx.saved_tensors
        gradient, dims = gradients[0], [dim for dim in range(normed.ndim) if dim != 1]
        exact = gradient.double()
        sums = ranks.total(torch.cat([exact.sum(dims), (exact * normed).sum(dims)])) / count  # (2C,)
        shift, tilt = (part.to(normed.dtype).view(_shape(normed)) for part in sums.chunk(2))
        return scale.view(_shape(normed)) * (gradient - shift - normed * tilt), None
