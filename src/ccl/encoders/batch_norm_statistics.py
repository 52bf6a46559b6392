"""Batch-norm statistics estimated anew from given images, where those gathered in training no longer fit."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccl import ranks
from ccl.data.image_sources import ImageSource
from ccl.encoders.encoder import Encoder, evaluating
from ccl.views import Viewer


def reestimate(
    encoder: Encoder, source: ImageSource, viewer: Viewer, batch_size: int, past: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Give every batch norm the mean and the unbiased variance of what it is shown of these plain images.

    One pass for each layer, with the layers before it evaluated by their new statistics: so batches, their order,
    groups and ranks change nothing but rounding. What a batch norm was shown earlier, in `past` by its name, counts
    along. Returns the moments (see `_moments_of`) of what they have been shown in all; {} for no images.
    """
    found: dict[str, Tensor] = {}
    if not len(source):
        return found
    is_shared = 1 < ranks.size() <= len(source)  # fewer images than ranks: everyone reads them all
    mine = source.subset(ranks.own(torch.arange(len(source)))) if is_shared else source
    names = {norm: name for name, norm in _named_norms(encoder)}
    # A compiled network would pass by the hooks.
    with evaluating(encoder), torch.compiler.set_stance("force_eager"):
        first_image = next(viewer.plain_batches(source.subset(torch.arange(1)), 1))
        in_order: list[_BatchNorm] = []  # as images pass them
        with _watched(list(names), lambda norm, _: in_order.append(norm)):
            encoder(first_image)
        for norm in dict.fromkeys(in_order):
            moments = _no_moments(norm)
            for images in viewer.plain_batches(mine, batch_size):
                moments = _joined(moments, _moments_shown(norm, encoder, images))
            if is_shared:  # in the order of the ranks
                moments = reduce(_joined, ranks.gather(moments[None]).cpu(), _no_moments(norm))
            if past is not None:
                moments = _joined(past[names[norm]], moments)
            count, mean, squares = _parts(moments)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(squares / max(count - 1, 1))
            found[names[norm]] = moments
    return found


class AccumulatedStatistics(nn.Module):
    """Batch-norm moments of all steps so far, each as the weights at the end of its step saw its images."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._buffers_of = {name: f"norm{number}" for number, (name, _) in enumerate(_named_norms(encoder))}
        for name, norm in _named_norms(encoder):
            self.register_buffer(self._buffers_of[name], _no_moments(norm))

    def take(self, encoder: Encoder, source: ImageSource, viewer: Viewer, batch_size: int) -> None:
        """Add a step's images; the encoder then evaluates with the statistics of all steps."""
        past = {name: self.get_buffer(buffer).cpu().double() for name, buffer in self._buffers_of.items()}
        for name, moments in reestimate(encoder, source, viewer, batch_size, past).items():
            self.get_buffer(self._buffers_of[name]).copy_(moments)


def _moments_of(rows: Tensor) -> Tensor:
    """Count, mean and sum of squared distances to it of (N, C) or (N, C, H, W): one row (1 + 2C,) on the CPU."""
    dims = [dim for dim in range(rows.ndim) if dim != 1]
    variance, mean = torch.var_mean(rows.float(), dim=dims, correction=0)  # (C,), (C,)
    count = torch.tensor([rows.numel() // rows.shape[1]], dtype=torch.double)
    return torch.cat([count, mean.cpu().double(), count * variance.cpu().double()])


def _no_moments(norm: _BatchNorm) -> Tensor:
    return torch.zeros(1 + 2 * norm.num_features, dtype=torch.double)


def _parts(moments: Tensor) -> tuple[int, Tensor, Tensor]:
    count, mean, squares = torch.split(moments, [1, len(moments) // 2, len(moments) // 2])
    return int(count), mean, squares


def _joined(one: Tensor, other: Tensor) -> Tensor:
    """The moments of both sets of rows together."""
    (count, mean, squares), (other_count, other_mean, other_squares) = _parts(one), _parts(other)
    total = count + other_count
    if not total:
        return one
    apart = other_mean - mean
    squares = squares + other_squares + apart.square() * (count * other_count / total)
    return torch.cat([torch.tensor([float(total)]).double(), mean + apart * (other_count / total), squares])


class _ReachedError(Exception):
    """Ends a forward at the layer asked for; later layers need not be computed."""


def _moments_shown(norm: _BatchNorm, encoder: Encoder, images: Tensor) -> Tensor:
    found: list[Tensor] = []

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(_moments_of(inputs[0]))
        raise _ReachedError

    with _watched([norm], take), suppress(_ReachedError):
        encoder(images)
    return found[0]


def _named_norms(encoder: Encoder) -> list[tuple[str, _BatchNorm]]:
    """The batch norms that have statistics and may change, by their names."""
    norms = [(name, part) for name, part in encoder.named_modules() if isinstance(part, _BatchNorm)]
    return [
        (name, norm) for name, norm in norms if norm.running_mean is not None and norm not in encoder.frozen_modules
    ]


@contextmanager
def _watched(norms: list[_BatchNorm], watch: Any) -> Iterator[None]:
    """Context manager: calls `watch` with each batch norm and its inputs before its forward."""
    handles = [norm.register_forward_pre_hook(watch) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
