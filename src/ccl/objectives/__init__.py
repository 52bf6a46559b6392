"""Learn the present: one file per contrastive objective."""

from ccl.objectives.insdisc import InsDisc
from ccl.objectives.moco_v2 import MoCoV2
from ccl.objectives.simclr import SimCLR
from ccl.part import Contrast, Objective

__all__ = ["Contrast", "InsDisc", "MoCoV2", "Objective", "SimCLR"]
