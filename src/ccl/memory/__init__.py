"""What is remembered: embeddings in queues and banks, and the few images of the past themselves."""

from ccl.memory.budget import Budget, shares
from ccl.memory.cluster_count import estimate_num_clusters
from ccl.memory.feature_queue import FeatureQueue
from ccl.memory.herding import herding
from ccl.memory.instance_bank import InstanceBank
from ccl.memory.k_center import k_center
from ccl.memory.minred import minred
from ccl.memory.principal_components import principal_components
from ccl.memory.rehearsal import RehearsalMemory
from ccl.memory.selection import group, lowest_scores, lowest_view_variance, random_draw, reservoir, view_variance

__all__ = [
    "Budget",
    "FeatureQueue",
    "InstanceBank",
    "RehearsalMemory",
    "estimate_num_clusters",
    "group",
    "herding",
    "k_center",
    "lowest_scores",
    "lowest_view_variance",
    "minred",
    "principal_components",
    "random_draw",
    "reservoir",
    "shares",
    "view_variance",
]
