"""Queues and banks of embeddings, the rehearsal memory, and the choice of its images."""

from ccl.memory.budget import Budget, shares
from ccl.memory.clusters import estimate_num_clusters, group
from ccl.memory.diverse_selections import herding, k_center, minred, principal_components
from ccl.memory.queue_and_bank import FeatureQueue, InstanceBank
from ccl.memory.rehearsal import RehearsalMemory
from ccl.memory.selection import lowest_scores, lowest_view_variance, random_draw, reservoir, view_variance

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
