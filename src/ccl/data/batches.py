"""Which images at a time: the batches of an epoch, a pure function of ids and context, and evenly spaced samples."""

import torch
from torch import Tensor

from ccl.errors import UserError, counted
from ccl.seeding import permutation


def epoch_batches(ids: Tensor, batch_size: int, *context: int | str, multiple: int = 1) -> list[Tensor]:
    """Positions of all images in random order, in as few batches as `batch_size` allows, of sizes as equal as possible.

    Each size is a multiple of `multiple` (ranks times batch-norm groups). The up to multiple - 1 images that then don't
    fit are the last of the random order, so they are others in each epoch as long as the epoch is in the context.
    """
    if multiple < 1 or batch_size < multiple:
        raise UserError(f"batch_size {batch_size} is smaller than {max(multiple, 1)}, which must divide every batch")
    num_units = len(ids) // multiple
    if num_units == 0:
        if len(ids) == 0:
            return []
        raise UserError(
            f"{counted(len(ids), 'image')} can't fill one batch, whose size must be a multiple of {multiple}"
        )
    units_per_batch = batch_size // multiple
    num_batches = -(-num_units // units_per_batch)
    order = permutation(ids, *context, "batches")[: num_units * multiple]  # (N,)
    units = torch.tensor_split(order.view(num_units, multiple), num_batches)
    return [part.flatten() for part in units]


def evenly_spaced(num_images: int, most: int) -> Tensor:
    """Positions of at most so many images at even distances, from the first to the last."""
    return torch.arange(num_images) if num_images <= most else torch.linspace(0, num_images - 1, most).round().long()
