"""Several processes as one learner: how rows, gradients and answers travel. The only user of torch.distributed.

A batch of N images is dealt out like cards: image n belongs to rank n mod W, so that W ranks with one batch-norm group
each are one process with W groups. Without `torchrun` there is one rank, and everything here returns what it was given.
"""

from ccl.ranks.messages import begin_average as begin_average
from ccl.ranks.messages import exchange as exchange
from ccl.ranks.messages import from_first as from_first
from ccl.ranks.messages import gather as gather
from ccl.ranks.messages import gather_together as gather_together
from ccl.ranks.messages import largest as largest
from ccl.ranks.messages import own as own
from ccl.ranks.messages import total as total
from ccl.ranks.messages import wait as wait
from ccl.ranks.process_group import is_first as is_first
from ccl.ranks.process_group import is_launched as is_launched
from ccl.ranks.process_group import local_rank as local_rank
from ccl.ranks.process_group import rank as rank
from ccl.ranks.process_group import size as size
from ccl.ranks.process_group import start as start
from ccl.ranks.process_group import stop as stop
