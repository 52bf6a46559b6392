"""The bits of a view do not depend on its batch, whatever its size and whichever kernels the CPU chooses."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ccl.data.image_sources import ArraySource
from ccl.seeding import uniform
from ccl.views import RECIPES, Recipe, Viewer
from ccl.views.random_draws import NUM_BOX_DRAWS, random_boxes
from ccl.views.resampling import crop_resize, gaussian_blur

pytestmark = pytest.mark.cpu_kernels

NUM_IMAGES = 64
SIZES = range(1, 41)
EVERYTHING = replace(
    RECIPES["moco_cifar"], jitter_probability=1.0, blur_probability=0.5, solarise_probability=0.3
)  # all operations


def _noise(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 1000 + width)
    return torch.randint(0, 256, (NUM_IMAGES, 3, height, width), dtype=torch.uint8, generator=generator)


def _same_in_any_batch(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether f(rows) of 64, of 1, 2, 3 and 5, and of 64 in other places gives each row the same bits."""
    everyone = torch.arange(NUM_IMAGES)
    together = function(everyone)
    parts = [everyone[start : start + count] for start, count in ((1, 1), (30, 2), (5, 3), (58, 5))]
    return all(torch.equal(function(rows), together[rows]) for rows in (*parts, everyone.roll(1)))


@pytest.mark.parametrize(
    ("height", "width", "form"),
    [
        *((*size, "uint8") for size in ((16, 16), (28, 28), (32, 32), (33, 33), (20, 33), (7, 5), (1, 1))),
        *((*size, "float") for size in ((28, 28), (33, 33))),
        *((*size, "float at an odd address") for size in ((16, 16), (20, 33))),
    ],
)
def test_a_crop(height: int, width: int, form: str) -> None:
    images = _noise(height, width)
    if form != "uint8":
        floats = torch.empty(images.numel() + 1)[form == "float at an odd address" :][: images.numel()]
        images = floats.view(images.shape).copy_(images)
    uniforms = uniform(torch.arange(NUM_IMAGES), NUM_BOX_DRAWS, 0, "test")
    sides = torch.full((NUM_IMAGES,), height), torch.full((NUM_IMAGES,), width)
    boxes, flip = random_boxes(EVERYTHING, *sides, uniforms), uniforms[:, 0] < 0.5

    def crops(rows: Tensor, size: int) -> Tensor:
        first = int(rows[0])
        is_run = torch.equal(rows, torch.arange(first, first + len(rows)))
        here = images[first : first + len(rows)] if is_run else images[rows]  # a view of the memory where it can be one
        return crop_resize(here, boxes[rows], flip[rows], size)

    for size in SIZES:
        assert _same_in_any_batch(lambda rows, size=size: crops(rows, size)), size


@pytest.mark.parametrize(("height", "width", "size"), [(99, 101, 97), (130, 90, 83), (225, 225, 223)])
def test_a_crop_of_a_large_image(height: int, width: int, size: int) -> None:
    images = torch.rand(6, 3, height, width, generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor([[3.0, 5.0, 81.0, 77.0], [0, 0, width, height]]).repeat(3, 1)
    flip = torch.tensor([True, False, False, True, True, False])
    together = crop_resize(images, boxes, flip, size)
    for row in range(6):
        one = slice(row, row + 1)
        assert torch.equal(crop_resize(images[one], boxes[one], flip[one], size)[0], together[row]), row


def test_a_blur() -> None:
    sigmas = torch.linspace(0.1, 2.0, NUM_IMAGES)
    for size in SIZES:
        images = _noise(size, 41 - size) / 255
        assert _same_in_any_batch(lambda rows, images=images: gaussian_blur(images[rows], sigmas[rows], 6)), size


@pytest.mark.parametrize(("height", "width", "radius"), [(129, 131, 6), (224, 224, 6), (225, 190, 5)])
def test_a_blur_of_a_large_image(height: int, width: int, radius: int) -> None:
    images = torch.rand(6, 3, height, width, generator=torch.Generator().manual_seed(0))
    sigmas = torch.linspace(0.1, 1.6, 6)
    together = gaussian_blur(images, sigmas, radius)
    for row in range(6):
        assert torch.equal(gaussian_blur(images[row : row + 1], sigmas[row : row + 1], radius)[0], together[row]), row


@pytest.mark.parametrize(
    ("height", "width", "sizes"),
    [(32, 32, [*range(1, 18), 28, 31, 32, 40]), (16, 16, [7, 16]), (33, 33, [9, 32]), (28, 20, [11, 28])],
    ids=["32", "16", "33", "28x20"],
)
def test_a_view(height: int, width: int, sizes: Sequence[int]) -> None:
    source = ArraySource(_noise(height, width), torch.arange(NUM_IMAGES) * 7 + 3)
    mask = torch.ones(NUM_IMAGES, dtype=torch.bool)

    def views(rows: Tensor, recipe: Recipe) -> Tensor:
        (batch,) = Viewer(recipe, 4).batches(source, [rows], moment=(1, 2), num_views=1, plain=mask)
        return torch.stack([batch.views[0], batch.plain], 1)

    for size in sizes:
        recipe = replace(EVERYTHING, size=size)
        assert _same_in_any_batch(lambda rows, recipe=recipe: views(rows, recipe)), size


@pytest.mark.parametrize("recipe", [RECIPES["insdisc"], RECIPES["moco_imagenet"]], ids=["insdisc", "moco_imagenet"])
def test_a_view_of_a_published_recipe(recipe: Recipe) -> None:
    source, everyone = ArraySource(_noise(32, 32)[:12]), torch.arange(12)

    def views(rows: Tensor) -> Tensor:
        (batch,) = Viewer(recipe, 4).batches(source, [rows], num_views=1)
        return batch.views[0]

    together = views(everyone)
    for rows in (everyone.flip(0), everyone[3:], everyone[7:8]):
        assert torch.equal(views(rows), together[rows])
