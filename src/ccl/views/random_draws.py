"""A view's random box (left, top, width, height in pixels) and appearance: pure functions of `ViewKey` and image."""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ccl.seeding import uniform
from ccl.views.colour import ORDERS
from ccl.views.recipes import Recipe

NUM_ATTEMPTS = 10
NUM_BOX_DRAWS = 2 * NUM_ATTEMPTS + 2  # area and ratio of each attempt, then one place
NUM_DRAWS = NUM_BOX_DRAWS + 11


@dataclass(frozen=True)
class ViewKey:
    """Which view of an image is meant: all that its draws depend on, beside the image's id and turn."""

    seed: int
    moment: tuple[int, ...]  # step and epoch, say
    view: int

    def uniforms(self, ids: Tensor, turns: Tensor | None = None, num_draws: int = NUM_DRAWS) -> Tensor:
        """(N, num_draws) in [0, 1), by ids and turns (N,); fewer draws are the first of more."""
        return uniform(ids, num_draws, self.seed, "view", *self.moment, self.view, turns=turns)


@dataclass(frozen=True)
class Appearance:
    """All random parameters of N views except their boxes; on the CPU."""

    is_flipped: Tensor  # (N,) bool
    is_jittered: Tensor  # (N,) bool
    factors: Tensor  # (N, 4) for brightness, contrast, saturation, hue
    orders: Tensor  # (N, 4): a permutation of those four for each image
    is_grey: Tensor  # (N,) bool
    is_blurred: Tensor  # (N,) bool
    sigmas: Tensor  # (N,)
    is_solarised: Tensor  # (N,) bool

    def rows(self, rows: slice) -> "Appearance":
        """The same of some of the views."""
        return Appearance(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def drawn_boxes(recipe: Recipe, heights: Tensor, widths: Tensor, uniforms: Tensor | None) -> Tensor:
    """Boxes (N, 4) in images of these sizes (N,), by numbers (N, NUM_BOX_DRAWS or more) in [0, 1); None: plain ones."""
    if uniforms is None or recipe.crop == "whole":
        return plain_boxes(recipe, heights, widths)
    return random_boxes(recipe, heights, widths, uniforms[:, :NUM_BOX_DRAWS])


def random_boxes(recipe: Recipe, heights: Tensor, widths: Tensor, uniforms: Tensor) -> Tensor:
    """Boxes (N, 4) of whole pixels as RandomResizedCrop draws them, from numbers (N, NUM_BOX_DRAWS) in [0, 1)."""
    # In double precision: rounding to pixels then can't depend on how a batch is vectorised.
    height, width = heights.double(), widths.double()  # (N,)
    draws = uniforms.double()  # (N, K)
    scale = recipe.min_scale + (recipe.max_scale - recipe.min_scale) * draws[:, :NUM_ATTEMPTS]
    low, high = math.log(recipe.min_ratio), math.log(recipe.max_ratio)
    ratio = torch.exp(low + (high - low) * draws[:, NUM_ATTEMPTS : 2 * NUM_ATTEMPTS])
    area = scale * (height * width)[:, None]
    box_widths = torch.sqrt(area * ratio).round()  # (N, attempts)
    box_heights = torch.sqrt(area / ratio).round()
    fits = (
        (box_widths >= 1) & (box_widths <= width[:, None]) & (box_heights >= 1) & (box_heights <= height[:, None])
    )  # (N, attempts)
    first = fits.int().argmax(1, keepdim=True)  # (N, 1); the first of equal maxima
    found = fits.any(1)  # (N,)
    # Where no attempt fits: the largest box with an allowed ratio.
    # Differs: torchvision may round a side to 0 in an image one pixel thin.
    fallback_width = torch.minimum(width, (height * recipe.max_ratio).round().clamp(min=1))
    fallback_height = torch.minimum(height, (width / recipe.min_ratio).round().clamp(min=1))
    box_width = torch.where(found, box_widths.gather(1, first)[:, 0], fallback_width)
    box_height = torch.where(found, box_heights.gather(1, first)[:, 0], fallback_height)
    free_x, free_y = width - box_width, height - box_height
    place_x, place_y = draws[:, -2], draws[:, -1]
    left = torch.where(found, (place_x * (free_x + 1)).floor(), (free_x / 2).floor())
    top = torch.where(found, (place_y * (free_y + 1)).floor(), (free_y / 2).floor())
    return torch.stack([left, top, box_width, box_height], 1).float()


def plain_boxes(recipe: Recipe, heights: Tensor, widths: Tensor) -> Tensor:
    """Boxes (N, 4): the centre square of `plain_fraction` of the shorter side; a square image whole where that is 1."""
    side = (torch.minimum(heights, widths).double() * recipe.plain_fraction).round().clamp(min=1)  # (N,)
    left, top = ((widths - side) / 2).floor(), ((heights - side) / 2).floor()
    return torch.stack([left, top, side, side], 1).float()


def drawn_appearance(recipe: Recipe, uniforms: Tensor) -> Appearance:
    """Flip, jitter, grey and blur of the views, by numbers (N, NUM_DRAWS) in [0, 1)."""
    # A draw keeps its column whether it is used or not, so that one change of a recipe leaves the rest as it was.
    draws = uniforms[:, NUM_BOX_DRAWS:]  # (N, 11)
    strengths = torch.tensor([recipe.brightness, recipe.contrast, recipe.saturation, recipe.hue])
    lowest = torch.cat([(1 - strengths[:3]).clamp(min=0), -strengths[3:]])  # (4,)
    highest = torch.cat([1 + strengths[:3], strengths[3:]])
    return Appearance(
        is_flipped=draws[:, 0] < recipe.flip,
        is_jittered=draws[:, 1] < (recipe.jitter_probability if recipe.jitters else 0.0),
        factors=lowest + (highest - lowest) * draws[:, 2:6],
        orders=ORDERS[(draws[:, 6] * len(ORDERS)).long()],
        is_grey=draws[:, 7] < recipe.grey_probability,
        is_blurred=draws[:, 8] < recipe.blur_probability,
        sigmas=recipe.min_sigma + (recipe.max_sigma - recipe.min_sigma) * draws[:, 9],
        is_solarised=draws[:, 10] < recipe.solarise_probability,
    )
