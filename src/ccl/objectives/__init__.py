"""Learn the present: one file per objective, with negatives or without."""

from ccl.objectives.barlow_twins import BarlowTwins
from ccl.objectives.byol import BYOL
from ccl.objectives.insdisc import InsDisc
from ccl.objectives.mae import MAE
from ccl.objectives.moco_v2 import MoCoV2
from ccl.objectives.simclr import SimCLR
from ccl.objectives.simsiam import SimSiam
from ccl.objectives.vicreg import VICReg
from ccl.part import Contrast, Objective

__all__ = ["BYOL", "MAE", "BarlowTwins", "Contrast", "InsDisc", "MoCoV2", "Objective", "SimCLR", "SimSiam", "VICReg"]
