"""Batch norm with the statistics of the rows of all ranks, forwards and backwards, on any device that ranks talk by.

torch's SyncBatchNorm works on GPUs only.
"""

from typing import Any

import torch
from torch import Tensor

from ccl import ranks


def normalised_over_ranks(rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Rows (N, C) or (N, C, H, W), normalised; with the mean (C,) and the unbiased variance (C,) of all ranks' rows.

    Ranks may have unequal numbers of rows. Each rank's loss is its own, and gradients are averaged at the end: what
    another rank's loss owes to the statistics of this rank's rows comes back in the backward pass.
    """
    normed, mean, variance = _Normalise.apply(rows, eps)  # type: ignore[no-untyped-call]
    shape = _shape(rows)
    normed = normed if weight is None else normed * weight.view(shape)
    normed = normed if bias is None else normed + bias.view(shape)
    return normed.to(rows.dtype), mean, variance


def _shape(rows: Tensor) -> tuple[int, ...]:
    """How a vector (C,) lies beside rows."""
    return (1, -1, *(1 for _ in rows.shape[2:]))


class _Normalise(torch.autograd.Function):
    """(x − μ) / σ of all ranks' rows. One message forwards, one backwards."""

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
