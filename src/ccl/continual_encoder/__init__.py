"""Encoder folders: an encoder that learns from drops of unlabelled images, in versions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccl.continual_encoder.continual_encoder import ContinualEncoder as ContinualEncoder
    from ccl.continual_encoder.frozen import FrozenEncoder as FrozenEncoder
    from ccl.continual_encoder.transformer import EncoderTransformer as EncoderTransformer

_HOMES = {"ContinualEncoder": "continual_encoder", "EncoderTransformer": "transformer", "FrozenEncoder": "frozen"}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that settings can be checked without torch."""
    if name in _HOMES:
        return getattr(import_module(f"ccl.continual_encoder.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ccl.continual_encoder' has no attribute {name!r}")
