"""The formulas: pure functions of tensors, float32 inside, no state and no schedule."""

from ccl.losses.contrastive import info_nce as info_nce
from ccl.losses.contrastive import instance_softmax as instance_softmax
from ccl.losses.contrastive import nt_xent as nt_xent
from ccl.losses.past import cross_info_nce as cross_info_nce
from ccl.losses.past import cross_task_contrast as cross_task_contrast
from ccl.losses.past import osiris_distillation as osiris_distillation
from ccl.losses.past import pnr_nt_xent as pnr_nt_xent
from ccl.losses.past import similarity_distillation as similarity_distillation
from ccl.losses.without_negatives import barlow_twins as barlow_twins
from ccl.losses.without_negatives import cosine_distance as cosine_distance
from ccl.losses.without_negatives import feature_distance as feature_distance
from ccl.losses.without_negatives import masked_patches as masked_patches
from ccl.losses.without_negatives import vicreg as vicreg
