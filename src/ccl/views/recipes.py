"""What a view may look like: the published augmentation recipes as plain values."""

from dataclasses import dataclass, replace
from typing import Literal

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """How to crop, flip, colour, blur and normalise; strengths and probabilities mean what they mean in torchvision."""

    size: int  # side of the finished view
    crop: Literal["random", "whole"] = "random"
    min_scale: float = 0.08  # share of the image's area
    max_scale: float = 1.0
    probe_min_scale: float | None = None  # of the crops that a probe trains on; None: as above
    min_ratio: float = 3 / 4  # width : height
    max_ratio: float = 4 / 3
    flip: float = 0.0  # probability
    brightness: float = 0.0  # factor from [1 - strength, 1 + strength], not below 0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # share of the colour circle, either way
    jitter_probability: float = 0.0
    grey_probability: float = 0.0
    blur_probability: float = 0.0
    min_sigma: float = 0.1  # in pixels of the finished view
    max_sigma: float = 2.0
    solarise_probability: float = 0.0  # light values are inverted
    plain_fraction: float = 1.0  # share of the shorter side that the plain centre crop keeps
    mean: tuple[float, float, float] = CIFAR_MEAN
    std: tuple[float, float, float] = CIFAR_STD

    def __post_init__(self) -> None:
        if self.crop not in ("random", "whole"):
            raise ValueError(f'crop must be "random" or "whole", got {self.crop!r}')
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        for name in ("flip", "jitter_probability", "grey_probability", "blur_probability", "solarise_probability"):
            self._require(name, 0 <= getattr(self, name) <= 1, "lie in [0, 1]")
        for name in ("brightness", "contrast", "saturation"):
            self._require(name, 0 <= getattr(self, name) < float("inf"), "be finite and not negative")
        self._require("hue", 0 <= self.hue <= 0.5, "lie in [0, 0.5]")
        self._require("min_scale", 0 < self.min_scale <= self.max_scale, "lie in (0, max_scale]")
        self._require("max_scale", self.max_scale <= 1, "be at most 1")
        self._require("min_ratio", 0 < self.min_ratio <= self.max_ratio, "lie in (0, max_ratio]")
        self._require("max_ratio", self.max_ratio < float("inf"), "be finite")
        self._require("min_sigma", 0 < self.min_sigma <= self.max_sigma, "lie in (0, max_sigma]")
        self._require("max_sigma", self.max_sigma < float("inf"), "be finite")
        self._require("plain_fraction", 0 < self.plain_fraction <= 1, "lie in (0, 1]")
        self._require("mean", len(self.mean) == 3, "have one value per channel")
        self._require("std", len(self.std) == 3 and all(value > 0 for value in self.std), "have 3 positive values")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:  # comparisons with NaN are false, so NaN is refused too
            raise ValueError(f"{name} must {what}, got {getattr(self, name)}")

    @property
    def jitters(self) -> bool:
        """Whether any image may change its colours by jitter."""
        return self.jitter_probability > 0 and any((self.brightness, self.contrast, self.saturation, self.hue))

    def for_probe(self) -> "Recipe":
        """What the linear probe trains on: crop and flip, no colour, no blur."""
        return replace(
            self,
            min_scale=self.min_scale if self.probe_min_scale is None else self.probe_min_scale,
            jitter_probability=0.0,
            grey_probability=0.0,
            blur_probability=0.0,
            solarise_probability=0.0,
        )


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
