"""How a network wants its images, as it or its weights describe it: normalisation and size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_NAMES = {"mean": ("mean", "image_mean"), "std": ("std", "image_std"), "size": ("input_size", "size", "image_size")}


@dataclass(frozen=True)
class ImageFormat:
    """What is known of it; None for what nobody says."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None

    def over(self, other: "ImageFormat") -> "ImageFormat":
        """This, and of the other what this does not know."""
        return ImageFormat(self.mean or other.mean, self.std or other.std, self.size or other.size)


def from_config(config: Mapping[str, Any]) -> ImageFormat:
    """Of a description in JSON: timm's `pretrained_cfg`, a hub's preprocessor, or what `ccl export` writes."""
    for inner in ("pretrained_cfg", "preprocessing"):
        if isinstance(config.get(inner), Mapping):
            return from_config(config[inner])
    found = {key: next((config[name] for name in names if name in config), None) for key, names in _NAMES.items()}
    return ImageFormat(_three(found["mean"]), _three(found["std"]), _side(found["size"]))


def of_module(module: nn.Module) -> ImageFormat:
    """Of a network's attributes: timm's `pretrained_cfg`, or `mean`, `std` and `input_size` of its own."""
    config = getattr(module, "pretrained_cfg", None)
    if isinstance(config, Mapping):
        return from_config(config)
    names = [name for several in _NAMES.values() for name in several]
    return from_config({name: getattr(module, name) for name in names if getattr(module, name, None) is not None})


def _three(value: Any) -> tuple[float, ...] | None:
    is_known = isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(v, int | float) for v in value)
    return tuple(float(v) for v in value) if is_known else None


def _side(value: Any) -> int | None:
    """Of 224, [3, 224, 224], {"height": 224, …} or {"shortest_edge": 224}."""
    if isinstance(value, Mapping):
        value = value.get("height", value.get("shortest_edge"))
    if isinstance(value, list | tuple):
        value = value[-1] if value else None
    return value if isinstance(value, int) and value > 0 else None
