"""The recipes' values, their validation, and the distributions drawn from them."""

import math
from dataclasses import replace

import pytest
import torch

from ccl.views import RECIPES, Recipe
from ccl.views.random_draws import ViewKey, drawn_appearance


def test_recipes_are_the_published_ones() -> None:
    def colour(recipe: Recipe) -> tuple[float, ...]:
        return recipe.brightness, recipe.contrast, recipe.saturation, recipe.hue, recipe.jitter_probability

    cifar, imagenet, insdisc = RECIPES["moco_cifar"], RECIPES["moco_imagenet"], RECIPES["insdisc"]
    assert colour(cifar) == colour(imagenet) == colour(RECIPES["simclr"]) == (0.4, 0.4, 0.4, 0.1, 0.8)
    assert colour(insdisc) == (0.4, 0.4, 0.4, 0.4, 1.0)
    assert [RECIPES[name].min_scale for name in ("moco_cifar", "simclr", "insdisc")] == [0.08, 0.08, 0.2]
    assert imagenet.min_scale == 0.2
    assert {RECIPES[name].grey_probability for name in RECIPES if name != "plain"} == {0.2}
    assert {RECIPES[name].flip for name in RECIPES if name != "plain"} == {0.5}
    assert [recipe.blur_probability for recipe in (cifar, insdisc, imagenet)] == [0, 0, 0.5]
    assert (imagenet.size, imagenet.plain_fraction, imagenet.mean[0], cifar.mean[0]) == (224, 0.875, 0.485, 0.4914)


def test_the_probes_recipe_only_crops_and_flips() -> None:
    probe = RECIPES["moco_imagenet"].for_probe()
    assert (probe.crop, probe.size, probe.flip) == ("random", 224, 0.5)
    assert probe.min_scale == 0.08  # MoCo's linear evaluation
    look = drawn_appearance(probe, ViewKey(0, (), 0).uniforms(torch.arange(2000)))
    assert not (look.is_jittered | look.is_grey | look.is_blurred).any()
    assert 0.4 < look.is_flipped.float().mean() < 0.6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("size", 0), ("crop", "middle"), ("min_scale", 0.0), ("min_scale", 1.1), ("max_scale", 1.5)),
        *(("min_ratio", -1.0), ("min_ratio", 2.0), ("max_ratio", math.inf), ("flip", 1.5), ("brightness", -0.1)),
        *(("hue", 0.6), ("jitter_probability", math.nan), ("grey_probability", 2.0), ("blur_probability", -1.0)),
        *(("min_sigma", 0.0), ("min_sigma", 3.0), ("plain_fraction", 0.0), ("mean", (0.5,)), ("std", (1.0, 0.0, 1.0))),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        replace(RECIPES["moco_cifar"], **{name: value})  # type: ignore[arg-type]


def test_drawn_parameters_have_the_recipes_distributions() -> None:
    recipe = replace(RECIPES["moco_imagenet"], flip=0.3, contrast=0.2, brightness=1.5)
    look = drawn_appearance(recipe, ViewKey(1, (2, 3), 1).uniforms(torch.arange(20_000)))
    chances = {"flipped": 0.3, "jittered": 0.8, "grey": 0.2, "blurred": 0.5}
    for is_so, probability in ((getattr(look, f"is_{name}"), chance) for name, chance in chances.items()):
        assert abs(is_so.float().mean() - probability) < 0.015
    quantiles = torch.linspace(0, 1, 11)
    for column, (low, high) in enumerate([(0.0, 2.5), (0.8, 1.2), (0.6, 1.4), (-0.1, 0.1)]):
        drawn = look.factors[:, column].quantile(quantiles)
        assert torch.allclose(drawn, low + (high - low) * quantiles, atol=0.02 * (high - low)), column
    assert torch.allclose(look.sigmas.quantile(quantiles), 0.1 + 1.9 * quantiles, atol=0.04)
    counts = look.orders.mul(torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(counts) == 24
    assert (counts - 20_000 / 24).abs().max() < 130
    table = torch.stack(
        [look.is_flipped, look.is_jittered, look.is_grey, look.is_blurred, *look.factors.T, look.sigmas]
    )
    assert (torch.corrcoef(table.float()) - torch.eye(len(table))).abs().max() < 0.03  # drawn independently
