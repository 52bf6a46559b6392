"""Boxes against RandomResizedCrop's definition, the resampling against Pillow."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ccl.seeding import uniform
from ccl.views import RECIPES, resampling
from ccl.views.random_draws import NUM_BOX_DRAWS, plain_boxes, random_boxes
from ccl.views.resampling import crop_resize

RECIPE = RECIPES["moco_cifar"]


def _boxes(height: int, width: int, count: int = 4000, seed: int = 0) -> Tensor:
    uniforms = uniform(torch.arange(count), NUM_BOX_DRAWS, seed, "test")
    return random_boxes(RECIPE, torch.full((count,), height), torch.full((count,), width), uniforms)


def _noise(height: int, width: int, count: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(height * 10_000 + width)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def _by_pillow(image: Tensor, box: Tensor, flip: bool, size: int) -> Tensor:
    left, top, width, height = (int(value) for value in box)
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    picture = picture.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


@pytest.mark.parametrize(("height", "width"), [(32, 32), (84, 60), (1, 1), (1, 5000), (5000, 1), (2, 3)])
def test_boxes_are_whole_pixels_inside_the_image(height: int, width: int) -> None:
    boxes = _boxes(height, width, count=500)
    assert torch.equal(boxes, boxes.round())
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, 0] + boxes[:, 2] <= width).all()
    assert (boxes[:, 1] + boxes[:, 3] <= height).all()


def test_scale_is_uniform_and_ratio_log_uniform() -> None:
    # In a wide image with small scales every first attempt fits, so the distributions are those drawn.
    recipe = replace(RECIPE, min_scale=0.1, max_scale=0.4)
    uniforms = uniform(torch.arange(20_000), NUM_BOX_DRAWS, 3, "test")
    sides = torch.full((20_000,), 2000)
    boxes = random_boxes(recipe, sides, sides, uniforms).double()
    scale = boxes[:, 2] * boxes[:, 3] / 2000**2
    log_ratio = (boxes[:, 2] / boxes[:, 3]).log()
    quantiles = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    assert torch.allclose(scale.quantile(quantiles), 0.1 + 0.3 * quantiles, atol=0.006)
    bound = np.log(4 / 3)
    assert torch.allclose(log_ratio.quantile(quantiles), bound * (2 * quantiles - 1), atol=0.012)
    free = 2000 - boxes[:, 2:]
    assert torch.allclose((boxes[:, :2] / free).mean(0), torch.tensor(0.5, dtype=torch.float64), atol=0.01)


def test_every_place_of_a_box_is_reached() -> None:
    boxes = _boxes(4, 4)
    small = boxes[(boxes[:, 2] == 3) & (boxes[:, 3] == 3)]
    assert {(int(left), int(top)) for left, top in small[:, :2]} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_later_attempt_is_taken_when_the_first_does_not_fit() -> None:
    uniforms = torch.zeros(1, NUM_BOX_DRAWS)
    uniforms[0, 0], uniforms[0, 10] = 0.999, 0.999  # nearly the whole area at ratio 4:3 can't fit a square
    uniforms[0, 1], uniforms[0, 11] = 0.5, 0.5
    box = random_boxes(RECIPE, torch.tensor([100]), torch.tensor([100]), uniforms)[0]
    assert box.tolist() == [0, 0, 73, 73]  # sqrt(0.54 · 10000) = 73.48


def test_fallback_is_the_centre_with_the_nearest_ratio() -> None:
    assert _boxes(1, 5000, count=3)[:, [1, 2, 3]].tolist() == [[0, 1, 1]] * 3
    never = replace(RECIPE, min_scale=1.0)
    box = random_boxes(never, torch.tensor([60, 300]), torch.tensor([300, 60]), torch.rand(2, NUM_BOX_DRAWS))
    assert box.tolist() == [[110, 0, 80, 60], [0, 110, 60, 80]]


def test_plain_boxes() -> None:
    heights, widths = torch.tensor([32, 100, 256, 1]), torch.tensor([32, 60, 400, 5000])
    assert plain_boxes(RECIPE, heights, widths).tolist() == [
        [0, 0, 32, 32],
        [0, 20, 60, 60],
        [72, 0, 256, 256],
        [2499, 0, 1, 1],
    ]
    assert plain_boxes(RECIPES["moco_imagenet"], heights, widths)[2].tolist() == [88, 16, 224, 224]


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (84, 60, 32), (20, 50, 64), (300, 200, 24)])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_resize_is_pillows(height: int, width: int, size: int, flip: bool) -> None:
    boxes = _boxes(height, width, count=24, seed=size)
    images = _noise(height, width, count=24)
    ours = crop_resize(images, boxes, torch.full((24,), flip), size)
    theirs = torch.stack([_by_pillow(image, box, flip, size) for image, box in zip(images, boxes, strict=True)])
    # Pillow rounds to 8 bits after each of the two directions: at most one level in all.
    assert (ours - theirs).abs().max() <= 1.02 / 255


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (84, 84)])
def test_crop_resize_of_odd_shapes(height: int, width: int) -> None:
    images = _noise(height, width)
    whole = torch.tensor([[0.0, 0.0, width, height]])
    ours = crop_resize(images, whole, torch.tensor([True]), 16)
    assert (ours[0] - _by_pillow(images[0], whole[0], True, 16)).abs().max() <= 1.02 / 255


def test_flips_are_each_images_own() -> None:
    images, boxes = _noise(20, 20, count=4), torch.tensor([[2.0, 5.0, 11.0, 9.0]]).expand(4, 4)
    flip = torch.tensor([True, False, False, True])
    straight = crop_resize(images, boxes, torch.zeros(4, dtype=torch.bool), 16)
    mixed = crop_resize(images, boxes, flip, 16)
    expected = torch.where(flip[:, None, None, None], straight.flip(3), straight)
    assert torch.allclose(mixed, expected, atol=1e-6)


def test_the_identity_is_exact_with_and_without_the_short_cut() -> None:
    images = _noise(32, 32, count=3)
    whole = torch.tensor([[0.0, 0.0, 32.0, 32.0]]).expand(3, 4)
    straight = crop_resize(images, whole, torch.zeros(3, dtype=torch.bool), 32)
    assert torch.allclose(straight, images / 255, atol=1e-7)
    one_flipped = crop_resize(images, whole, torch.tensor([False, True, False]), 32)  # this goes the long way
    assert torch.equal(one_flipped[0], straight[0])
    assert torch.equal(one_flipped[1], straight[1].flip(2))


def test_float_images_keep_their_scale() -> None:
    images = torch.full((1, 3, 10, 10), 3.5)
    assert torch.allclose(
        crop_resize(images, torch.tensor([[1.0, 1, 7, 5]]), torch.tensor([False]), 4), torch.tensor(3.5)
    )


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (84, 60, 100), (224, 224, 224), (1, 300, 64)])
def test_box_by_box_is_the_whole(height: int, width: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, boxes = _noise(height, width, 20), _boxes(height, width, 20)
    flip = torch.arange(20) % 2 == 0
    monkeypatch.setattr(resampling, "_CROP_BY_BOX_FROM", 10**12)
    whole = crop_resize(images, boxes, flip, size)
    monkeypatch.setattr(resampling, "_CROP_BY_BOX_FROM", 0)
    assert torch.allclose(crop_resize(images, boxes, flip, size), whole, rtol=0, atol=1e-6)
