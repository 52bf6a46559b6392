"""Batch-norm statistics estimated anew from given images, where those gathered in training no longer fit."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccl import ranks
from ccl.data.sources import ImageSource
from ccl.encoders.encoder import Encoder, evaluating
from ccl.views import Viewer


def reestimate(
    encoder: Encoder,
    source: ImageSource,
    viewer: Viewer,
    batch_size: int,
    past: "Mapping[str, Moments] | None" = None,
) -> "dict[str, Moments]":
    """Give every batch norm the mean and the unbiased variance of what it is shown of these images, all weighed alike.

    One pass for each layer, up to that layer, with the layers before it evaluated by their new statistics. So the
    outcome does not depend on batches, their order, groups or ranks, but for rounding; averages over batches would, as
    every layer but the first then sees images that were normalised in the company of their batch. Images are plain,
    as these statistics are used in evaluation only, on plain images. No images: nothing changes.

    What a batch norm was shown earlier, in `past` by its name, counts along. Returns what they have been shown in all.
    """
    found: dict[str, Moments] = {}
    if not len(source):
        return found
    is_shared = 1 < ranks.size() <= len(source)  # fewer images than ranks: everyone reads them all
    mine = source.subset(ranks.share(torch.arange(len(source)))) if is_shared else source
    names = {norm: name for name, norm in named_norms(encoder)}
    # A compiled network would pass by the hooks.
    with evaluating(encoder), torch.compiler.set_stance("force_eager"):
        for norm in _in_order(encoder, next(viewer.plain_batches(source.subset(torch.arange(1)), 1))):
            moments = Moments.of_none(norm.num_features)
            for images in viewer.plain_batches(mine, batch_size):
                moments = moments.joined(_shown_to(norm, encoder, images))
            if is_shared:
                moments = moments.of_all_ranks()
            if past is not None:
                moments = past[names[norm]].joined(moments)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.copy_(moments.mean)
            norm.running_var.copy_(moments.squares / max(moments.count - 1, 1))
            found[names[norm]] = moments
    return found


class AccumulatedStatistics(nn.Module):
    """What each batch norm of an encoder was shown of every step so far, when that step had been learned.

    A count, and a mean and a variance for each channel: what is left of the images where none may be kept. The shares
    of earlier steps are as the weights of then saw them. It stays on the CPU, in double precision.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._names = [name for name, _ in named_norms(encoder)]
        for number, (_, norm) in enumerate(named_norms(encoder)):
            self.register_buffer(f"norm{number}", Moments.of_none(norm.num_features).packed())

    def take(self, encoder: Encoder, source: ImageSource, viewer: Viewer, batch_size: int) -> None:
        """A step's images join, and the encoder evaluates with what all steps have shown."""
        held = {name: f"norm{number}" for number, name in enumerate(self._names)}
        past = {name: Moments.unpacked(self.get_buffer(buffer)) for name, buffer in held.items()}
        for name, moments in reestimate(encoder, source, viewer, batch_size, past).items():
            self.get_buffer(held[name]).copy_(moments.packed())


@dataclass(frozen=True)
class Moments:
    """Of rows that were met: how many, their mean (C,) and the sum of squared distances to it (C,), on the CPU."""

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of_none(cls, channels: int) -> "Moments":
        return cls(0, torch.zeros(channels, dtype=torch.double), torch.zeros(channels, dtype=torch.double))

    @classmethod
    def of(cls, rows: Tensor) -> "Moments":
        """Of (N, C) or (N, C, H, W), where every place of an image counts."""
        dims = [dim for dim in range(rows.ndim) if dim != 1]
        variance, mean = torch.var_mean(rows.float(), dim=dims, correction=0)  # (C,), (C,)
        count = rows.numel() // rows.shape[1]
        return cls(count, mean.cpu().double(), count * variance.cpu().double())

    def joined(self, other: "Moments") -> "Moments":
        """Of both: the variance within each, and that of their means."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return Moments(count, mean, self.squares + other.squares + apart.square() * (self.count * other.count / count))

    def of_all_ranks(self) -> "Moments":
        """Of the rows of all ranks together, in the order of the ranks."""
        joined = Moments.of_none(len(self.mean))
        for row in ranks.gather(self.packed()[None]):  # (1 + 2C,)
            joined = joined.joined(Moments.unpacked(row))
        return joined

    def packed(self) -> Tensor:
        """As one row of numbers, (1 + 2C,)."""
        return torch.cat([torch.tensor([float(self.count)], dtype=torch.double), self.mean, self.squares])

    @classmethod
    def unpacked(cls, row: Tensor) -> "Moments":
        """From such a row."""
        count, mean, squares = torch.split(row.cpu().double(), [1, len(row) // 2, len(row) // 2])
        return cls(int(count), mean, squares)


class _ReachedError(Exception):
    """The layer asked for has been reached: what comes after it need not be computed."""


def named_norms(encoder: Encoder) -> list[tuple[str, _BatchNorm]]:
    """The batch norms that have statistics and may change, by their names."""
    norms = [(name, part) for name, part in encoder.named_modules() if isinstance(part, _BatchNorm)]
    return [
        (name, norm) for name, norm in norms if norm.running_mean is not None and norm not in encoder.frozen_modules
    ]


def _in_order(encoder: Encoder, images: Tensor) -> list[_BatchNorm]:
    """The same in the order in which images pass them."""
    met: dict[_BatchNorm, None] = {}
    norms = [norm for _, norm in named_norms(encoder)]
    with _watched(norms, lambda norm, _: met.update({norm: None})):
        encoder(images)
    return list(met)


def _shown_to(norm: _BatchNorm, encoder: Encoder, images: Tensor) -> Moments:
    found: list[Moments] = []

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(Moments.of(inputs[0]))
        raise _ReachedError

    with _watched([norm], take), suppress(_ReachedError):
        encoder(images)
    return found[0]


@contextmanager
def _watched(norms: list[_BatchNorm], watch: Any) -> Iterator[None]:
    """Inside, `watch` is called with a batch norm and its inputs before it acts."""
    handles = [norm.register_forward_pre_hook(watch) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
