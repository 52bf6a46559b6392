"""HOG against a naive loop and by hand; thumbnails by hand."""

import math

import numpy as np
import pytest
import torch

from ccl.data import ArraySource
from ccl.evaluation import pixel_features
from ccl.evaluation.baseline_features import hog_with_colours, thumbnails


def naive_hog(image: np.ndarray) -> np.ndarray:
    """Pixel by pixel, cell by cell, block by block; image (3, S, S) in [0, 1]."""
    _, height, width = image.shape
    cells = np.zeros((height // 8, width // 8, 9))
    for y in range(height):
        for x in range(width):
            steps = [
                (
                    channel[y, min(x + 1, width - 1)] - channel[y, max(x - 1, 0)],
                    channel[min(y + 1, height - 1), x] - channel[max(y - 1, 0), x],
                )
                for channel in image
            ]
            right, down = max(steps, key=lambda step: math.hypot(*step))
            place = (math.atan2(down, right) % math.pi) / math.pi * 9
            lower, share = int(place), place - int(place)
            cells[y // 8, x // 8, lower % 9] += math.hypot(right, down) * (1 - share) / 64
            cells[y // 8, x // 8, (lower + 1) % 9] += math.hypot(right, down) * share / 64
    blocks = []
    for y in range(cells.shape[0] - 1):
        for x in range(cells.shape[1] - 1):
            block = cells[y : y + 2, x : x + 2].ravel()
            block = np.minimum(block / math.sqrt((block**2).sum() + 1e-6), 0.2)
            blocks.append(np.sort(block / math.sqrt((block**2).sum() + 1e-6)))
    return np.array(blocks)


def test_hog_equals_a_naive_loop() -> None:
    image = torch.randint(0, 256, (1, 3, 24, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    rows = hog_with_colours(image)
    assert rows.shape == (1, 36 * 4 + 3 * 9)
    blocks = rows[0, : 36 * 4].reshape(36, 4).T.sort(dim=1).values  # in whatever order a block's numbers stand
    np.testing.assert_allclose(blocks.numpy(), naive_hog(image[0].numpy() / 255.0), atol=1e-5)
    colours = image.float().reshape(3, 3, 8, 3, 8).mean(dim=(2, 4)) / 255  # (channels, cells, cells)
    torch.testing.assert_close(rows[0, 36 * 4 :], colours.flatten())


def test_a_vertical_edge_has_one_angle_and_grey_has_none() -> None:
    image = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    image[..., 8:] = 200
    block = hog_with_colours(image)[0, :36].reshape(9, 4)  # angles, cells of the one block
    assert bool((block[0] > 0.4).all())
    assert bool((block[1:].abs() < 1e-6).all())
    assert bool((hog_with_colours(torch.full((1, 3, 16, 16), 7, dtype=torch.uint8))[0, :36] == 0).all())


def test_brightness_moves_only_the_colours() -> None:
    image = torch.randint(0, 100, (2, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    before, after = hog_with_colours(image), hog_with_colours(image + 100)
    torch.testing.assert_close(before[:, :36], after[:, :36], atol=1e-4, rtol=0)
    torch.testing.assert_close(before[:, 36:] + 100 / 255, after[:, 36:])


def test_thumbnails_are_means_of_squares() -> None:
    image = torch.arange(3 * 48 * 48).reshape(1, 3, 48, 48).remainder(251).to(torch.uint8)
    expected = image.double().reshape(3, 16, 3, 16, 3).mean(dim=(2, 4)) / 255
    torch.testing.assert_close(thumbnails(image)[0], expected.flatten().float())


@pytest.mark.parametrize("side", [16, 48, 70])
def test_images_of_any_size_have_features_of_one_length(side: int) -> None:
    images = torch.randint(0, 256, (3, 3, side, side), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    found = pixel_features(ArraySource(images))
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {"pixels": (3, 768), "hog": (3, 1008)}
