"""When the parts act: the learner, its optimizer, and the one loop over the stream."""

from ccl.training.exemplar_selection import MemoryOptions as MemoryOptions
from ccl.training.exemplar_selection import Remembered as Remembered
from ccl.training.exemplar_selection import Selection as Selection
from ccl.training.exemplar_selection import remember as remember
from ccl.training.learner import Learner as Learner
from ccl.training.loop import Loop as Loop
from ccl.training.loop import SavePoint as SavePoint
from ccl.training.loop import learn_stream as learn_stream
from ccl.training.observer import Observer as Observer
from ccl.training.observer import Observers as Observers
from ccl.training.optimizer import OptimizerOptions as OptimizerOptions
from ccl.training.optimizer import Plan as Plan
from ccl.training.progress import Progress as Progress
from ccl.training.update import NotFiniteError as NotFiniteError
from ccl.training.update import update as update
