"""When the parts act: the learner, its optimizer, and the one loop over the stream."""

from ccl.training.exemplar_selection import MemoryOptions, Remembered, Selection, remember
from ccl.training.learner import Learner
from ccl.training.loop import Loop, SavePoint, learn_stream
from ccl.training.observer import Observer, Observers
from ccl.training.optimizer import OptimizerOptions, Plan
from ccl.training.progress import Progress
from ccl.training.update import NotFiniteError, update

__all__ = [
    "Learner",
    "Loop",
    "MemoryOptions",
    "NotFiniteError",
    "Observer",
    "Observers",
    "OptimizerOptions",
    "Plan",
    "Progress",
    "Remembered",
    "SavePoint",
    "Selection",
    "learn_stream",
    "remember",
    "update",
]
