"""Colour and blur against kornia."""

import kornia
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ccl.views import colour, resampling
from ccl.views.colour import ORDERS, jitter_, solarise, to_grey
from ccl.views.resampling import blur_radius, gaussian_blur


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(24, 3, 12, 12, generator=generator)
    images[0] = 0.0
    images[1] = 1.0
    images[2] = images[2, :1]  # grey: no hue
    images[3, 1] = images[3, 0]  # two channels tie
    return images


@pytest.fixture
def factors() -> Tensor:
    """(24, 4) as the jitter draws them, the ends among them."""
    share = torch.linspace(0, 1, 24)[:, None].expand(24, 4)
    lowest, highest = torch.tensor([0.6, 0.6, 0.6, -0.4]), torch.tensor([1.4, 1.4, 1.4, 0.4])
    return lowest + (highest - lowest) * share


def _reference(images: Tensor, factors: Tensor, order: list[int]) -> Tensor:
    """kornia's operations with torchvision's meaning on a batch that shares an order."""
    enhance = kornia.enhance
    operations = [
        lambda image: enhance.adjust_brightness_accumulative(image, factors[:, 0]),
        lambda image: enhance.adjust_contrast_with_mean_subtraction(image, factors[:, 1]),
        lambda image: enhance.adjust_saturation_with_gray_subtraction(image, factors[:, 2]),
        lambda image: enhance.adjust_hue(image, factors[:, 3] * 2 * torch.pi),
    ]
    for number in order:
        images = operations[number](images)
    return images


@pytest.mark.parametrize("number", range(4))
def test_each_operation_is_kornias(images: Tensor, factors: Tensor, number: int) -> None:
    theirs = _reference(images, factors, [number])
    assert torch.allclose(colour.OPERATIONS[number](images.clone(), factors[:, number]), theirs, atol=2e-5)


def test_jitter_takes_each_image_through_its_own_order(images: Tensor, factors: Tensor) -> None:
    chosen = torch.arange(24) % 5 != 4
    ours = jitter_(images.clone(), factors, ORDERS, chosen)
    for row in range(24):
        one = slice(row, row + 1)
        theirs = _reference(images[one], factors[one], ORDERS[row].tolist()) if chosen[row] else images[one]
        assert torch.allclose(ours[one], theirs, atol=1e-4), row


def test_jitter_one_by_one_is_the_jitter(images: Tensor, factors: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = torch.arange(24) % 5 != 4
    sorted_by_task = jitter_(images.clone(), factors, ORDERS, chosen)
    monkeypatch.setattr(colour, "_ONE_BY_ONE_FROM", 0)
    assert torch.equal(jitter_(images.clone(), factors, ORDERS, chosen), sorted_by_task)


def test_orders_are_all_the_permutations() -> None:
    assert {tuple(order) for order in ORDERS.tolist()} == {tuple(torch.randperm(4).tolist()) for _ in range(2000)}


def test_hue_of_a_third_moves_pure_red_to_green() -> None:
    red = torch.tensor([1.0, 0.0, 0.0])[None, :, None, None].repeat(1, 1, 2, 2)
    assert torch.allclose(
        colour.adjust_hue_(red, torch.tensor([1 / 3]))[0, :, 0, 0], torch.tensor([0.0, 1, 0]), atol=1e-6
    )


def test_grey_is_kornias_in_all_channels(images: Tensor) -> None:
    assert torch.allclose(to_grey(images), kornia.color.rgb_to_grayscale(images).expand(-1, 3, -1, -1), atol=1e-6)


def test_solarised_values_are_pillow_s() -> None:
    values = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    theirs = torch.from_numpy(np.array(ImageOps.solarize(Image.fromarray(values.numpy()), threshold=128)))
    ours = solarise(values.float()[None, None].expand(1, 3, 16, 16) / 255)
    assert torch.equal((ours * 255).round().to(torch.uint8)[0, 0], theirs)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (13, 21), (7, 7)])
def test_blur_is_kornias(height: int, width: int) -> None:
    images = torch.rand(6, 3, height, width, generator=torch.Generator().manual_seed(1))
    sigmas = torch.tensor([0.1, 0.3, 0.7, 1.1, 1.6, 2.0])
    radius = blur_radius(2.0)
    assert radius == 6
    side = 2 * radius + 1
    theirs = kornia.filters.gaussian_blur2d(images, (side, side), torch.stack([sigmas, sigmas], 1), "reflect")
    assert torch.allclose(gaussian_blur(images, sigmas, radius), theirs, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (130, 201), (57, 112)])
def test_blur_in_tiles_is_the_blur(height: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(5, 3, height, width, generator=torch.Generator().manual_seed(2))
    sigmas = torch.tensor([0.1, 0.4, 0.9, 1.5, 2.0])
    monkeypatch.setattr(resampling, "_BLUR_BY_TILE_FROM", 10_000)
    whole = gaussian_blur(images, sigmas, 6)
    monkeypatch.setattr(resampling, "_BLUR_BY_TILE_FROM", 1)
    assert torch.allclose(gaussian_blur(images, sigmas, 6), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_blur_of_images_smaller_than_its_reach_keeps_a_constant(size: int) -> None:
    images = torch.full((2, 3, size, size), 0.3)
    assert torch.allclose(gaussian_blur(images, torch.tensor([0.5, 2.0]), 6), images, atol=1e-6)


def test_blur_folds_a_short_line_back_as_often_as_needed() -> None:
    line = torch.tensor([1.0, 2.0, 4.0])  # …4 2 [1 2 4] 2 1 2 4…
    folded = torch.tensor([1.0, 2, 4, 2] * 6)
    weights = torch.exp(-0.5 * (torch.arange(-6, 7) / 2.0) ** 2)
    expected = [(weights * folded[8 + place - 6 : 8 + place + 7]).sum() / weights.sum() for place in range(3)]
    images = line.expand(1, 3, 3, 3)
    assert torch.allclose(gaussian_blur(images, torch.tensor([2.0]), 6)[0, 0, 0], torch.stack(expected), atol=1e-5)
