"""When the parts act: the learner, its optimizer, and the one loop over the stream."""

from ccl.training.exemplars import Remembered, Selection, remember
from ccl.training.learner import Learner
from ccl.training.loop import Moment, NotFiniteError, Observer, learn_stream
from ccl.training.optimizer import Plan
from ccl.training.progress import Progress

__all__ = [
    "Learner",
    "Moment",
    "NotFiniteError",
    "Observer",
    "Plan",
    "Progress",
    "Remembered",
    "Selection",
    "learn_stream",
    "remember",
]
