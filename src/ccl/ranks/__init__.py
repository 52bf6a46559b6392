"""Several processes as one learner: how rows, gradients and answers travel. The only user of torch.distributed.

A batch of N images is dealt out like cards: image n belongs to rank n mod W, so that W ranks with one batch-norm group
each are one process with W groups. Without `torchrun` there is one rank, and everything here returns what it was given.
"""

from ccl.ranks.messages import (
    begin_average,
    exchange,
    from_first,
    gather,
    gather_together,
    largest,
    own,
    total,
    wait,
)
from ccl.ranks.process_group import is_first, is_launched, local_rank, rank, size, start, stop

__all__ = [
    "begin_average",
    "exchange",
    "from_first",
    "gather",
    "gather_together",
    "is_first",
    "is_launched",
    "largest",
    "local_rank",
    "own",
    "rank",
    "size",
    "start",
    "stop",
    "total",
    "wait",
]
