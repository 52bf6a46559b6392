"""Retention: parts that keep the past; one file per kind."""

from ccl.part import BatchContext, Retention
from ccl.retention.alignment import Alignment
from ccl.retention.cross_task import CrossTask
from ccl.retention.extra_sample_queue import ExtraSampleQueue
from ccl.retention.past_negatives import PastNegatives
from ccl.retention.predictive_distillation import PredictiveDistillation
from ccl.retention.stored_features import StoredFeatures
from ccl.retention.teacher_distillation import TeacherDistillation

__all__ = [
    "Alignment",
    "BatchContext",
    "CrossTask",
    "ExtraSampleQueue",
    "PastNegatives",
    "PredictiveDistillation",
    "Retention",
    "StoredFeatures",
    "TeacherDistillation",
]
