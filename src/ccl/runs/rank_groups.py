"""Batch-norm groups over several processes: which go together, and what is refused."""

from ccl import ranks
from ccl.catalogue import row_of
from ccl.errors import UserError
from ccl.settings import Settings


def refuse_ranks(settings: Settings) -> None:
    """Each process must have whole batch-norm groups, or all of them one; batches must divide too."""
    groups, count = settings.encoder.batch_norm_groups, ranks.size()
    nearest = -(-groups // count) * count
    if groups % count and groups != 1:
        raise UserError(
            f"encoder.batch_norm_groups {groups} can't be spread over {count} processes; "
            f"set it to {nearest} or another multiple of {count}, or to 1 for all processes together"
        )
    if not is_synchronised(settings):
        return
    norms = [name for name in settings.method.retention if row_of("retention", name).has_norms]
    what = f"the batch norms of {norms[0]}" if norms else "performance.compile" if settings.performance.compile else ""
    if what:
        raise UserError(
            f"encoder.batch_norm_groups 1 over {count} processes is not possible with {what}; set it to {nearest}"
        )
    if settings.batch_size % count:
        raise UserError(
            f"batch_size {settings.batch_size} can't be spread over {count} processes; "
            f"nearest valid value: {fitting(settings.batch_size, count)}"
        )


def is_synchronised(settings: Settings) -> bool:
    """Whether one batch-norm group holds the images of several processes."""
    return settings.encoder.batch_norm_groups == 1 < ranks.size()


def groups_of_this_rank(settings: Settings) -> int:
    """How many a process has of its own; settings count those of all processes."""
    return max(settings.encoder.batch_norm_groups // ranks.size(), 1)


def fitting(num_images: int, groups: int) -> int:
    """The largest multiple of the groups in so many images, but one at least."""
    return max(num_images // groups * groups, groups)
