"""The formulas: pure functions of tensors, float32 inside, no state and no schedule."""

from ccl.losses.contrastive import info_nce, instance_softmax, nt_xent
from ccl.losses.past import (
    cross_info_nce,
    cross_task_contrast,
    osiris_distillation,
    pnr_nt_xent,
    similarity_distillation,
)
from ccl.losses.without_negatives import barlow_twins, cosine_distance, feature_distance, masked_patches, vicreg

__all__ = [
    "barlow_twins",
    "cosine_distance",
    "cross_info_nce",
    "cross_task_contrast",
    "feature_distance",
    "info_nce",
    "instance_softmax",
    "masked_patches",
    "nt_xent",
    "osiris_distillation",
    "pnr_nt_xent",
    "similarity_distillation",
    "vicreg",
]
