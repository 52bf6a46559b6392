"""An encoder that keeps up: a folder that is fed with drops of unlabelled images and used the same day."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccl.state.continual_encoder import ContinualEncoder as ContinualEncoder
    from ccl.state.frozen import FrozenEncoder as FrozenEncoder

_HOMES = {"ContinualEncoder": "continual_encoder", "FrozenEncoder": "frozen"}
__all__ = ["ContinualEncoder", "FrozenEncoder"]


def __getattr__(name: str) -> Any:
    """On first use, so that settings can be checked without torch."""
    if name in _HOMES:
        return getattr(import_module(f"ccl.state.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ccl.state' has no attribute {name!r}")
