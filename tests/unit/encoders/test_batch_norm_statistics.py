"""Statistics estimated anew: the exact mean and variance of what each batch norm is shown, and nothing else moved."""

import numpy as np
import pytest
import torch
from networks import make_encoder
from numpy.typing import NDArray
from torch import nn

from ccl.data.image_sources import ArraySource
from ccl.encoders import Encoder, SplitBatchNorm
from ccl.encoders.batch_norm_statistics import AccumulatedStatistics, reestimate
from ccl.views import RECIPES, Viewer


def images(count: int = 11, seed: int = 0) -> ArraySource:
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=draw)
    shades = torch.randint(1, 9, (count, 1, 1, 1), generator=draw)  # some images dark, some bright
    return ArraySource((pixels // shades).to(torch.uint8))


def viewer() -> Viewer:
    return Viewer(RECIPES["plain"], seed=0)


def worn(backbone: str = "convnet", groups: int = 1) -> Encoder:
    """An encoder whose norms have weights, and statistics of something else."""
    encoder = make_encoder(backbone, width=4, dim=5, batch_norm_groups=groups)
    draw = torch.Generator().manual_seed(1)
    for norm in norms(encoder):
        norm.weight.data.uniform_(0.5, 1.5, generator=draw)
        norm.bias.data.uniform_(-0.5, 0.5, generator=draw)
        norm.running_mean.uniform_(-1, 1, generator=draw)
        norm.running_var.uniform_(0.1, 9, generator=draw)
    return encoder.train()


def norms(encoder: Encoder) -> list[nn.Module]:
    return [part for part in encoder.modules() if isinstance(part, nn.BatchNorm2d | SplitBatchNorm)]


def shown(encoder: Encoder, source: ArraySource) -> list[NDArray[np.float64]]:
    """What each norm is shown of all images in one batch, in evaluation: rows (N·H·W, C)."""
    found: dict[int, NDArray[np.float64]] = {}
    for number, norm in enumerate(norms(encoder)):
        norm.register_forward_pre_hook(
            lambda _, inputs, number=number: found.update(
                {number: inputs[0].double().movedim(1, -1).flatten(0, -2).numpy()}
            )
        )
    with torch.no_grad():
        encoder.eval()(next(viewer().plain_batches(source, len(source))))
    return [found[number] for number in range(len(found))]


@pytest.mark.parametrize(("batch_size", "groups"), [(1, 1), (4, 1), (11, 1), (4, 3)])
@pytest.mark.parametrize("backbone", ["convnet", "resnet18"])
def test_they_are_the_mean_and_variance_over_all_images(backbone: str, batch_size: int, groups: int) -> None:
    encoder, source = worn(backbone, groups), images()
    reestimate(encoder, source, viewer(), batch_size)
    rows = shown(encoder, source)
    assert len(rows) == {"convnet": 4, "resnet18": 20}[backbone]
    for norm, seen in zip(norms(encoder), rows, strict=True):
        np.testing.assert_allclose(norm.running_mean.numpy(), seen.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(norm.running_var.numpy(), seen.var(axis=0, ddof=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("backbone", ["convnet", "resnet18"])
def test_accumulated_ones_are_those_of_all_images_so_far(backbone: str, groups: int) -> None:
    """The first norm sees all images through the same weights; later ones through statistics of their time."""
    encoder, parts = worn(backbone, groups), [images(7, seed=1), images(1, seed=2), images(5, seed=3)]
    accumulated = AccumulatedStatistics(encoder)
    for number, part in enumerate(parts):
        accumulated.take(encoder, part, viewer(), 4)
        resumed = AccumulatedStatistics(encoder)
        resumed.load_state_dict(accumulated.state_dict())
        accumulated = resumed
        first = ArraySource(torch.cat([one.images for one in parts[: number + 1]]))
        seen = shown(encoder, first)[0]
        np.testing.assert_allclose(norms(encoder)[0].running_mean.numpy(), seen.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            norms(encoder)[0].running_var.numpy(), seen.var(axis=0, ddof=1), rtol=1e-4, atol=1e-6
        )


def test_nothing_else_is_touched() -> None:
    encoder, before = worn(groups=2), worn(groups=2)
    reestimate(encoder, images(), viewer(), 4)
    changed = {name for name, value in encoder.state_dict().items() if not value.equal(before.state_dict()[name])}
    assert changed == {name for name in before.state_dict() if name.endswith(("running_mean", "running_var"))}
    assert all(part.training for part in encoder.modules())
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert not any(part._forward_pre_hooks for part in encoder.modules())


def test_without_images_they_stay() -> None:
    encoder, before = worn(), worn()
    reestimate(encoder, images(0), viewer(), 4)
    assert all(value.equal(before.state_dict()[name]) for name, value in encoder.state_dict().items())


def test_an_encoder_without_norms_is_left_alone() -> None:
    class Flat(nn.Module):
        num_features = 3 * 32 * 32

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.flatten(1)

    reestimate(Encoder(Flat(), dim=2), images(), viewer(), 4)
