"""Keep the past: one file per way of doing it."""

from ccl.retention.extra_sample_queue import ExtraSampleQueue
from ccl.retention.lesson import Lesson, Retention
from ccl.retention.teacher_distillation import TeacherDistillation

__all__ = ["ExtraSampleQueue", "Lesson", "Retention", "TeacherDistillation"]
