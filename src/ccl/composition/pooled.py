"""Every image of D_t ∪ S once an epoch, in random order. Paper: §Rehearsal."""

from torch import Tensor

from ccl.composition.composition import Composition, EpochBatch
from ccl.data import epoch_batches


class Pooled(Composition):
    """An old image is as likely as a new one: a batch holds as large a share of old images as the pool does."""

    def batches(self, ids: Tensor, num_new: int, batch_size: int, multiple: int, *context: int) -> list[EpochBatch]:
        return [EpochBatch.once(part) for part in epoch_batches(ids, batch_size, *context, multiple=multiple)]
