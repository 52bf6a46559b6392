"""The formulas: pure functions of tensors, float32 inside, no state and no schedule."""

from ccl.losses.barlow_twins import barlow_twins
from ccl.losses.cosine_distance import cosine_distance
from ccl.losses.cross_info_nce import cross_info_nce
from ccl.losses.cross_task_contrast import cross_task_contrast
from ccl.losses.feature_distance import feature_distance
from ccl.losses.info_nce import info_nce
from ccl.losses.instance_nce import instance_nce, instance_softmax
from ccl.losses.masked_patches import masked_patches
from ccl.losses.nt_xent import nt_xent
from ccl.losses.osiris_distillation import osiris_distillation
from ccl.losses.pnr_nt_xent import pnr_nt_xent
from ccl.losses.similarity_distillation import similarity_distillation
from ccl.losses.vicreg import vicreg

__all__ = [
    "barlow_twins",
    "cosine_distance",
    "cross_info_nce",
    "cross_task_contrast",
    "feature_distance",
    "info_nce",
    "instance_nce",
    "instance_softmax",
    "masked_patches",
    "nt_xent",
    "osiris_distillation",
    "pnr_nt_xent",
    "similarity_distillation",
    "vicreg",
]
