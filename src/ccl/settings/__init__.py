"""Strict settings: what a run may be given, with the paper's values for CIFAR-100 as defaults. No torch in here.

Settings stop at the edge: builders read them and pass plain keyword arguments; no part keeps a settings object.
"""

from ccl.settings.inputs import PRETRAINED, EncoderSettings
from ccl.settings.resuming import FILLED_IN, MAY_CHANGE, differences
from ccl.settings.section import Section, merged
from ccl.settings.settings import WHOLE, Settings, own_defaults

__all__ = [
    "FILLED_IN",
    "MAY_CHANGE",
    "PRETRAINED",
    "WHOLE",
    "EncoderSettings",
    "Section",
    "Settings",
    "differences",
    "merged",
    "own_defaults",
]
