"""What a file made with an encoder says of it, and whether two files come from the same one."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.errors import UserError


def description(frozen: FrozenEncoder) -> dict[str, Any]:
    """The version and all it takes to use its backbone elsewhere, as JSON values."""
    return {
        "version": frozen.version,
        "fingerprint": fingerprint(frozen),
        "architecture": architecture(frozen),
        "num_features": frozen.encoder.num_features,
        "preprocessing": preprocessing(frozen),
        "ccl": version("ccl"),
        "torch": torch.__version__,
    }


def architecture(frozen: FrozenEncoder) -> dict[str, Any]:
    """The backbone in the words of the settings; a width of None is the published one."""
    return frozen.architecture.model_dump(include={"backbone", "stem", "width"})


def preprocessing(frozen: FrozenEncoder) -> dict[str, Any]:
    """From an 8-bit RGB picture, upright and with alpha laid on white, to what the backbone reads, in this order.

    `resize`: the centre square is brought to this side, bilinear and anti-aliased, in 8 bits (None: left out). Then
    the centre square of `crop_fraction` of the shorter side, rounded, is brought to `size` likewise; then
    (value · scale − mean) / std, channels first. `docs/using.md` has it in ten lines of Pillow and NumPy.
    """
    recipe = frozen.recipe
    return {
        "resize": frozen.resize,
        "crop_fraction": recipe.plain_fraction,
        "size": recipe.size,
        "interpolation": "bilinear, anti-aliased",
        "scale": 1 / 255,
        "mean": list(recipe.mean),
        "std": list(recipe.std),
    }


def fingerprint(frozen: FrozenEncoder) -> str:
    """Equal where the features are: sixteen hexadecimal digits of backbone, its weights and the preprocessing."""
    state = hashlib.sha256(json.dumps([architecture(frozen), preprocessing(frozen)], sort_keys=True).encode())
    for name, tensor in sorted(frozen.encoder.backbone.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:16]


def refuse_other_encoder(frozen: FrozenEncoder, maker: Mapping[str, Any], what: str, advice: str) -> None:
    """Refuse a file whose maker, as `description` has it, gives other features than this encoder."""
    if maker.get("fingerprint") == fingerprint(frozen):
        return
    then, now = maker.get("version"), frozen.version
    of_what = f"version {then} of another encoder" if then == now else f"version {then}, and this is version {now}"
    raise UserError(f"{what} was made with {of_what}: features of one say nothing to the other; {advice}")
