"""What is remembered: embeddings in queues and banks, and the few images of the past themselves."""

from ccl.memory.feature_queue import FeatureQueue
from ccl.memory.instance_bank import InstanceBank
from ccl.memory.rehearsal import RehearsalMemory
from ccl.memory.selection import group, lowest_scores, lowest_view_variance, random_draw, view_variance

__all__ = [
    "FeatureQueue",
    "InstanceBank",
    "RehearsalMemory",
    "group",
    "lowest_scores",
    "lowest_view_variance",
    "random_draw",
    "view_variance",
]
