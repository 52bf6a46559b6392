"""Queues and banks of embeddings, the rehearsal memory, and the choice of its images."""

from ccl.memory.clusters import estimate_num_clusters as estimate_num_clusters
from ccl.memory.clusters import group as group
from ccl.memory.diverse_selections import herding as herding
from ccl.memory.diverse_selections import k_center as k_center
from ccl.memory.diverse_selections import minred as minred
from ccl.memory.diverse_selections import principal_components as principal_components
from ccl.memory.queue_and_bank import FeatureQueue as FeatureQueue
from ccl.memory.queue_and_bank import InstanceBank as InstanceBank
from ccl.memory.rehearsal import RehearsalMemory as RehearsalMemory
from ccl.memory.selection import lowest_scores as lowest_scores
from ccl.memory.selection import lowest_view_variance as lowest_view_variance
from ccl.memory.selection import random_draw as random_draw
from ccl.memory.selection import reservoir as reservoir
from ccl.memory.selection import view_variance as view_variance
