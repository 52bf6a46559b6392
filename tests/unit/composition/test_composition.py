"""What a batch holds: sizes, shares, turns, and what stays as it was without a memory."""

import pytest
import torch
from torch import Tensor

from ccl.composition import EpochBatch, Pooled, Share
from ccl.data import epoch_batches

CONTEXT = (7, 1, 3)  # seed, step, epoch


def ids(num_new: int, num_old: int) -> Tensor:
    return torch.cat([1000 + torch.arange(num_new), 10 + torch.arange(num_old)])


def parts(batch: EpochBatch, num_new: int) -> tuple[list[int], list[int]]:
    new = batch.positions < num_new
    return batch.positions[new].tolist(), batch.positions[~new].tolist()


def test_pooled_is_every_image_once() -> None:
    batches = Pooled().batches(ids(20, 4), 20, 8, 1, *CONTEXT)
    plain = epoch_batches(ids(20, 4), 8, *CONTEXT)
    assert [batch.positions.tolist() for batch in batches] == [part.tolist() for part in plain]
    assert not torch.cat([batch.turns for batch in batches]).any()


@pytest.mark.parametrize("old", [0.1, 0.25, 0.5, 0.75])
@pytest.mark.parametrize(("num_new", "num_old"), [(20, 4), (64, 16), (33, 1), (16, 40)])
def test_each_batch_has_its_share_and_as_many_updates_as_pooled(old: float, num_new: int, num_old: int) -> None:
    images = ids(num_new, num_old)
    batches = Share(Share.Options(old=old)).batches(images, num_new, 8, 1, *CONTEXT)
    pooled = epoch_batches(images, 8, *CONTEXT)
    assert [len(batch.positions) for batch in batches] == [len(part) for part in pooled]
    for batch in batches:
        assert len(parts(batch, num_new)[1]) == round(old * len(batch.positions))


def test_images_come_round_again_in_new_orders_and_each_turn_is_counted() -> None:
    batches = Share(Share.Options(old=0.5)).batches(ids(24, 5), 24, 8, 1, *CONTEXT)
    old = torch.cat([batch.positions[batch.positions >= 24] for batch in batches])
    turns = torch.cat([batch.turns[batch.positions >= 24] for batch in batches])
    for cycle in range(len(old) // 5):
        assert sorted(old[5 * cycle : 5 * cycle + 5].tolist()) == list(range(24, 29))
    assert turns.tolist() == [place // 5 for place in range(len(old))]
    assert old[:5].tolist() != old[5:10].tolist()
    new = torch.cat([batch.positions[batch.positions < 24] for batch in batches])
    assert len(set(new.tolist())) == len(new)  # half of the updates' room: no new image twice
    pairs = [(p, t) for b in batches for p, t in zip(b.positions.tolist(), b.turns.tolist(), strict=True)]
    assert len(set(pairs)) == len(pairs)  # so no view is seen twice


def test_no_old_images_is_finetuning_bit_for_bit() -> None:
    fresh = [part.tolist() for part in epoch_batches(ids(50, 0), 10, *CONTEXT)]
    first_step = Share(Share.Options(old=0.5)).batches(ids(50, 0), 50, 10, 1, *CONTEXT)
    assert [batch.positions.tolist() for batch in first_step] == fresh


@pytest.mark.parametrize("multiple", [2, 4])
def test_batches_can_be_dealt_to_groups(multiple: int) -> None:
    batches = Share(Share.Options(old=0.3)).batches(ids(50, 6), 50, 16, multiple, *CONTEXT)
    assert all(len(batch.positions) % multiple == 0 for batch in batches)


@pytest.mark.parametrize(("num_old", "most"), [(20, 2.0), (20, 1.0), (40, 3.0), (10, 5.0)])
def test_a_small_memory_is_not_repeated_more_often_than_allowed(num_old: int, most: float) -> None:
    share = Share(Share.Options(old=0.5, most_repeats=most))
    batches = share.batches(ids(1000, num_old), 1000, 100, 1, *CONTEXT)
    shown = sum(len(parts(batch, 1000)[1]) for batch in batches)
    assert shown / num_old == pytest.approx(most, rel=0.15)  # batches hold whole images
    assert len({len(parts(batch, 1000)[1]) for batch in batches[:-1]}) == 1


def test_a_large_memory_has_its_share_whatever_the_limit() -> None:
    limited, free = Share(Share.Options(old=0.25, most_repeats=2.0)), Share(Share.Options(old=0.25))
    both = [share.batches(ids(60, 40), 60, 10, 1, *CONTEXT) for share in (limited, free)]
    assert [[batch.positions.tolist() for batch in batches] for batches in both[:1]] == [
        [batch.positions.tolist() for batch in batches] for batches in both[1:]
    ]


def test_another_epoch_is_another_order_and_the_same_call_the_same() -> None:
    def positions(*context: int) -> list[list[int]]:
        return [
            batch.positions.tolist() for batch in Share(Share.Options(old=0.5)).batches(ids(24, 8), 24, 8, 1, *context)
        ]

    assert positions(7, 1, 3) == positions(7, 1, 3) != positions(7, 1, 4)


@pytest.mark.parametrize("old", [-0.1, 1.0, 1.5])
def test_a_share_that_leaves_nothing_new_is_refused(old: float) -> None:
    with pytest.raises(ValueError, match="old"):
        Share(Share.Options(old=old))
