"""Learn the present: one file per objective, with negatives or without."""

from ccl.objectives.barlow_twins import BarlowTwins as BarlowTwins
from ccl.objectives.byol import BYOL as BYOL
from ccl.objectives.insdisc import InsDisc as InsDisc
from ccl.objectives.mae import MAE as MAE
from ccl.objectives.moco_v2 import MoCoV2 as MoCoV2
from ccl.objectives.simclr import SimCLR as SimCLR
from ccl.objectives.simsiam import SimSiam as SimSiam
from ccl.objectives.vicreg import VICReg as VICReg
