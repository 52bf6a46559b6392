"""From crops to finished views: colour, grey, blur and normalisation, in batches on the device."""

import torch
from torch import Tensor

from ccl.views.blur import blur_radius, gaussian_blur
from ccl.views.colour import jitter_, solarise, to_grey
from ccl.views.random_draws import Appearance
from ccl.views.recipes import Recipe

# Values worked on at once on a CPU, so that a dozen operations in a row find them in the cache.
_CPU_BLOCK = 2**20


def finish(crops: Tensor, appearance: Appearance, recipe: Recipe) -> Tensor:
    """Crops (N, 3, S, S) in 0 … 1, already flipped, become normalised views, in their own memory."""
    block = max(1, _CPU_BLOCK // max(1, crops[:1].numel())) if crops.device.type == "cpu" else max(1, len(crops))
    for start in range(0, len(crops), block):
        rows = slice(start, start + block)
        _colour_and_blur_(crops[rows], appearance.rows(rows), recipe)
        normalise_(crops[rows], recipe)
    return crops


def normalise_(images: Tensor, recipe: Recipe) -> Tensor:
    """Take the recipe's mean off images in 0 … 1, in place, and count in units of its standard deviation."""
    mean = torch.tensor(recipe.mean, device=images.device)[:, None, None]  # (3, 1, 1)
    std = torch.tensor(recipe.std, device=images.device)[:, None, None]
    return images.sub_(mean).div_(std)


def _colour_and_blur_(images: Tensor, appearance: Appearance, recipe: Recipe) -> None:
    device = images.device
    if appearance.is_jittered.any():
        jitter_(images, appearance.factors, appearance.orders, appearance.is_jittered)
    grey = appearance.is_grey.nonzero()[:, 0].to(device)
    if len(grey):
        images.index_copy_(0, grey, to_grey(images.index_select(0, grey)))
    blurred = appearance.is_blurred.nonzero()[:, 0].to(device)
    if len(blurred):
        sigmas = appearance.sigmas.to(device)[blurred]
        soft = gaussian_blur(images.index_select(0, blurred), sigmas, blur_radius(recipe.max_sigma))
        images.index_copy_(0, blurred, soft)
    solarised = appearance.is_solarised.nonzero()[:, 0].to(device)
    if len(solarised):
        images.index_copy_(0, solarised, solarise(images.index_select(0, solarised)))
