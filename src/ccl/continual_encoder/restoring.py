"""A learner as a version left it, also where its queue has grown since."""

from collections.abc import Mapping

from torch import Tensor

from ccl.memory import FeatureQueue
from ccl.training import Learner


def load_learner(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    """Load a version's tensors; a queue that is longer now keeps what it held, and its other rows are as when new."""
    state = dict(tensors)
    for name, queue in learner.named_modules():
        if isinstance(queue, FeatureQueue):
            own = {key: f"{name}.{key}" for key in ("vectors", "ids", "cursor")}
            held = queue.holding(*(state[key] for key in own.values()))
            state |= {own[key]: tensor for key, tensor in held.items()}
    learner.load_state_dict(state)
