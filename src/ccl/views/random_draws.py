"""What chance decides about one view: a pure function of (seed, moment, image id, turn, view number)."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ccl.seeding import uniform
from ccl.views.colour import ORDERS
from ccl.views.crops import NUM_BOX_DRAWS, plain_boxes, random_boxes
from ccl.views.recipes import Recipe

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
    """Everything random about N views but their boxes; on the CPU."""

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


def drawn_boxes(recipe: Recipe, heights: Tensor, widths: Tensor, uniforms: Tensor) -> Tensor:
    """Boxes (N, 4) of the views of images of these sizes (N,), by numbers (N, NUM_BOX_DRAWS or more) in [0, 1)."""
    if recipe.crop == "whole":
        return plain_boxes(recipe, heights, widths)
    return random_boxes(recipe, heights, widths, uniforms[:, :NUM_BOX_DRAWS])


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
