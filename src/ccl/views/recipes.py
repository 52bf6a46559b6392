"""The published augmentation recipes as plain values, and the options that change them."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ccl.section import Count, Fraction, Positive, Section, Weight

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Scale = Annotated[float, Field(gt=0.0, le=1.0)]
Channels = Annotated[list[float], Field(min_length=3, max_length=3)]


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Recipe:
    """How to crop, flip, colour, blur and normalise; strengths and probabilities mean what they mean in torchvision."""

    size: Count  # side of the finished view
    crop: Literal["random", "whole"] = "random"
    min_scale: Scale = 0.08  # share of the image's area
    max_scale: Scale = 1.0
    probe_min_scale: Scale | None = None  # of the crops that a probe trains on; None: as above
    min_ratio: Positive = 3 / 4  # width : height
    max_ratio: Positive = 4 / 3
    flip: Fraction = 0.0  # probability
    brightness: Weight = 0.0  # factor from [1 - strength, 1 + strength], not below 0
    contrast: Weight = 0.0
    saturation: Weight = 0.0
    hue: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0  # share of the colour circle, either way
    jitter_probability: Fraction = 0.0
    grey_probability: Fraction = 0.0
    blur_probability: Fraction = 0.0
    min_sigma: Positive = 0.1  # in pixels of the finished view
    max_sigma: Positive = 2.0
    solarise_probability: Fraction = 0.0  # light values are inverted
    plain_fraction: Scale = 1.0  # share of the shorter side that the plain centre crop keeps
    mean: tuple[float, float, float] = CIFAR_MEAN
    std: tuple[Positive, Positive, Positive] = CIFAR_STD

    def __post_init__(self) -> None:
        for name in ("scale", "ratio", "sigma"):
            if getattr(self, f"min_{name}") > getattr(self, f"max_{name}"):
                raise ValueError(f"min_{name} must not exceed max_{name}, got {getattr(self, f'min_{name}')}")

    @property
    def jitters(self) -> bool:
        """Whether any image may change its colours by jitter."""
        return self.jitter_probability > 0 and any((self.brightness, self.contrast, self.saturation, self.hue))

    def for_probe(self) -> "Recipe":
        """The recipe of the linear probe: crop and flip, no colour, no blur."""
        scale = self.probe_min_scale or self.min_scale
        unjittered = replace(self, min_scale=scale, jitter_probability=0.0, grey_probability=0.0)
        return replace(unjittered, blur_probability=0.0, solarise_probability=0.0)


# The common core: ColorJitter(0.4, 0.4, 0.4, 0.1) with probability 0.8, grey with 0.2, flip with 0.5.
_MOCO_CIFAR = Recipe(
    size=32,
    flip=0.5,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    jitter_probability=0.8,
    grey_probability=0.2,
)

RECIPES: dict[str, Recipe] = {
    # MoCo's public CIFAR-10 demo; the scale is torchvision's default.
    "moco_cifar": _MOCO_CIFAR,
    # MoCo v2 on ImageNet; the plain crop is the usual 224 of 256.
    "moco_imagenet": replace(
        _MOCO_CIFAR,
        size=224,
        min_scale=0.2,
        probe_min_scale=0.08,  # MoCo's linear evaluation has torchvision's default
        blur_probability=0.5,
        plain_fraction=0.875,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    # SimCLR on CIFAR: colour strength 0.5 means (0.8, 0.8, 0.8, 0.2) / 2, no blur: the same values as MoCo's demo.
    "simclr": _MOCO_CIFAR,
    # InsDisc's public CIFAR script: always jittered, hue as strong as the rest.
    "insdisc": replace(_MOCO_CIFAR, min_scale=0.2, hue=0.4, jitter_probability=1.0),
    "plain": Recipe(size=32, crop="whole"),
}


class ViewOptions(Section):
    """How an image is seen; None leaves the recipe's own value."""

    # A published augmentation, whose values hold where those below are None
    recipe: Literal["moco_cifar", "moco_imagenet", "simclr", "insdisc", "plain"] = "moco_cifar"
    size: Count | None = None  # side of a view in pixels
    min_scale: Scale | None = None  # the smallest crop, as a share of the image's area
    flip: Fraction | None = None  # how often a view is mirrored
    grey_probability: Fraction | None = None  # how often it loses its colours
    jitter_probability: Fraction | None = None  # how often brightness, contrast, saturation and hue change
    blur_probability: Fraction | None = None  # how often it is blurred
    # Of values in 0 … 1, for red, green and blue; None: as the network or its weights say, else the recipe's
    mean: Channels | None = None
    std: Annotated[list[Positive], Field(min_length=3, max_length=3)] | None = None  # as mean, and positive
    solarise_probability: Fraction | None = None  # of both views

    def to_recipe(self) -> Recipe:
        """The recipe by its name, with the values given here in the place of its own."""
        given = self.model_dump(exclude={"recipe"}, exclude_none=True)
        return replace(RECIPES[self.recipe], **given)
