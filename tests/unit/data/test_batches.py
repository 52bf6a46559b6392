"""Batches of an epoch: what must hold for any number of images, batch size and multiple."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccl.data import epoch_batches
from ccl.errors import UserError


@given(num=st.integers(0, 300), batch_size=st.integers(1, 70), multiple=st.integers(1, 9), epoch=st.integers(0, 99))
def test_sizes_are_equal_multiples_and_nearly_all_images_come_once(
    num: int, batch_size: int, multiple: int, epoch: int
) -> None:
    if batch_size < multiple or 0 < num < multiple:
        with pytest.raises(UserError):
            epoch_batches(torch.arange(num), batch_size, 0, epoch, multiple=multiple)
        return
    batches = epoch_batches(torch.arange(num) * 7, batch_size, 0, epoch, multiple=multiple)
    seen = [position for batch in batches for position in batch.tolist()]
    assert len(seen) == len(set(seen)) == num - num % multiple
    assert set(seen) <= set(range(num))
    sizes = [len(batch) for batch in batches]
    assert all(0 < size <= batch_size and size % multiple == 0 for size in sizes)
    if sizes:
        assert max(sizes) - min(sizes) <= multiple
        # One batch fewer could not hold them.
        assert (len(sizes) - 1) * (batch_size // multiple * multiple) < len(seen)


def test_hand_made_sizes() -> None:
    assert [len(batch) for batch in epoch_batches(torch.arange(10), 4, 0)] == [4, 3, 3]
    assert [len(batch) for batch in epoch_batches(torch.arange(11), 5, 0, multiple=2)] == [4, 4, 2]


def test_left_out_images_differ_between_epochs() -> None:
    left_out = set()
    for epoch in range(40):
        batches = epoch_batches(torch.arange(9), 8, "run", epoch, multiple=4)
        left_out |= set(range(9)) - set(torch.cat(batches).tolist())
    assert left_out == set(range(9))


def test_order_is_pure_and_depends_on_ids_not_on_their_place() -> None:
    ids = torch.tensor([40, 7, 99, 3, 12, 5])
    order = torch.cat(epoch_batches(ids, 6, 1, 2))
    assert torch.equal(order, torch.cat(epoch_batches(ids, 6, 1, 2)))
    flipped = torch.cat(epoch_batches(ids.flip(0), 6, 1, 2))
    assert torch.equal(ids[order], ids.flip(0)[flipped])
    assert not torch.equal(order, torch.cat(epoch_batches(ids, 6, 1, 3)))
    # The batch size cuts the same order elsewhere.
    assert torch.equal(order, torch.cat(epoch_batches(ids, 2, 1, 2)))
