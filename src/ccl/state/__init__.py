"""An encoder that keeps up: a folder that is fed with drops of unlabelled images and used the same day."""

from ccl.state.continual_encoder import ContinualEncoder
from ccl.state.frozen import FrozenEncoder

__all__ = ["ContinualEncoder", "FrozenEncoder"]
