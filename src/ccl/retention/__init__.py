"""Keep the past: one file per way of doing it."""

from ccl.part import BatchContext, Retention
from ccl.retention.extra_sample_queue import ExtraSampleQueue
from ccl.retention.teacher_distillation import TeacherDistillation

__all__ = ["BatchContext", "ExtraSampleQueue", "Retention", "TeacherDistillation"]
