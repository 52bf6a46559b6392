"""From crops to finished views: colour, grey, blur and normalisation, in batches on the device."""

import torch
from torch import Tensor

from ccl.views.blur import blur_radius, gaussian_blur
from ccl.views.colour import jitter, to_grey
from ccl.views.draws import Appearance
from ccl.views.recipes import Recipe

# Values worked on at once on a CPU, so that a dozen operations in a row find them in the cache.
_CPU_BLOCK = 2**20


def finish(crops: Tensor, appearance: Appearance, recipe: Recipe) -> Tensor:
    """Crops (N, 3, S, S) in 0 … 1, already flipped, become normalised views; the crops' memory may be used up."""
    block = max(1, _CPU_BLOCK // crops[:1].numel()) if len(crops) and crops.device.type == "cpu" else len(crops)
    if len(crops) <= block:
        return normalise_(_coloured_and_blurred(crops, appearance, recipe), recipe)
    for start in range(0, len(crops), block):
        rows = slice(start, start + block)
        crops[rows] = normalise_(_coloured_and_blurred(crops[rows], appearance.rows(rows), recipe), recipe)
    return crops


def normalise_(images: Tensor, recipe: Recipe) -> Tensor:
    """Take the recipe's mean off images in 0 … 1, in place, and count in units of its standard deviation."""
    mean = torch.tensor(recipe.mean, device=images.device)[:, None, None]  # (3, 1, 1)
    std = torch.tensor(recipe.std, device=images.device)[:, None, None]
    return images.sub_(mean).div_(std)


def _coloured_and_blurred(images: Tensor, appearance: Appearance, recipe: Recipe) -> Tensor:
    device = images.device
    if appearance.is_jittered.any():
        images = jitter(images, appearance.factors, appearance.orders, appearance.is_jittered)
    grey = appearance.is_grey.nonzero()[:, 0].to(device)
    if len(grey):
        images.index_copy_(0, grey, to_grey(images.index_select(0, grey)))
    blurred = appearance.is_blurred.nonzero()[:, 0].to(device)
    if len(blurred):
        sigmas = appearance.sigmas.to(device)[blurred]
        soft = gaussian_blur(images.index_select(0, blurred), sigmas, blur_radius(recipe.max_sigma))
        images.index_copy_(0, blurred, soft)
    return images
