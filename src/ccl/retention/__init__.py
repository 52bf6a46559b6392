"""Retention: parts that keep the past; one file per kind."""

from ccl.retention.alignment import Alignment as Alignment
from ccl.retention.cross_task import CrossTask as CrossTask
from ccl.retention.extra_sample_queue import ExtraSampleQueue as ExtraSampleQueue
from ccl.retention.past_negatives import PastNegatives as PastNegatives
from ccl.retention.predictive_distillation import PredictiveDistillation as PredictiveDistillation
from ccl.retention.stored_features import StoredFeatures as StoredFeatures
from ccl.retention.teacher_distillation import TeacherDistillation as TeacherDistillation
