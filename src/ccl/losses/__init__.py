"""The formulas: pure functions of tensors, float32 inside, no state and no schedule."""

from ccl.losses.info_nce import info_nce
from ccl.losses.instance_nce import instance_nce, instance_softmax
from ccl.losses.nt_xent import nt_xent
from ccl.losses.similarity_distillation import similarity_distillation

__all__ = ["info_nce", "instance_nce", "instance_softmax", "nt_xent", "similarity_distillation"]
