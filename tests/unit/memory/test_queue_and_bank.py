"""The feature queue and the instance bank by content."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl.memory import FeatureQueue, InstanceBank


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 7), pushes=st.lists(st.integers(0, 18), max_size=6))
def test_the_queue_holds_the_last_keys_whatever_the_batch_sizes(size: int, pushes: list[int]) -> None:
    queue, everything = FeatureQueue(size, 2), []
    start = queue.vectors.clone()
    for count in pushes:
        keys = torch.arange(len(everything), len(everything) + count, dtype=torch.float32)[:, None].expand(count, 2)
        queue.push(keys, torch.arange(len(everything), len(everything) + count))
        everything += list(range(len(everything), len(everything) + count))
    last = set(everything[-size:])
    assert last <= set(queue.vectors[:, 0].tolist())
    assert {int(i) for i in queue.ids if i >= 0} == last
    untouched = queue.ids < 0
    assert int(untouched.sum()) == size - len(last)
    assert torch.equal(queue.vectors[untouched], start[untouched])


def test_the_oldest_go_first_over_the_border() -> None:
    queue = FeatureQueue(5, 1)
    queue.push(torch.tensor([[0.0], [1], [2], [3]]))
    queue.push(torch.tensor([[4.0], [5]]))
    assert sorted(queue.vectors.flatten().tolist()) == [1, 2, 3, 4, 5]


def test_a_fresh_queue_has_unit_rows_and_no_images() -> None:
    queue = FeatureQueue(16, 8, seed=3)
    assert torch.allclose(queue.vectors.norm(dim=1), torch.ones(16))
    assert torch.equal(queue.vectors, FeatureQueue(16, 8, seed=3).vectors)
    assert not queue.same_image(torch.arange(5)).any()


def test_same_image_marks_rows_by_id_and_push_cuts_the_gradient() -> None:
    queue = FeatureQueue(3, 2)
    keys = torch.eye(2, requires_grad=True)
    queue.push(keys, torch.tensor([7, 9]))
    assert queue.same_image(torch.tensor([9, 7, 8])).tolist() == [
        [False, True, False],
        [True, False, False],
        [False, False, False],
    ]
    assert not queue.vectors.requires_grad


def test_the_queue_s_state_is_all_in_its_state_dict() -> None:
    queue, other = FeatureQueue(5, 2), FeatureQueue(5, 2, seed=9)
    queue.push(torch.randn(3, 2), torch.arange(3))
    other.load_state_dict(queue.state_dict())
    queue.push(torch.ones(1, 2)), other.push(torch.ones(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(queue.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_bank_keeps_known_images_and_drops_the_rest() -> None:
    bank = InstanceBank(4, momentum=0.5)
    bank.hold(torch.tensor([30, 10, 20]), step=0)
    assert bank.ids.tolist() == [10, 20, 30]
    assert torch.allclose(bank.vectors.norm(dim=1), torch.ones(3))
    kept = bank.vectors[bank.rows(torch.tensor([20]))].clone()
    bank.hold(torch.tensor([5, 20, 40]), step=1)
    assert bank.ids.tolist() == [5, 20, 40]
    assert torch.equal(bank.vectors[1:2], kept)


def test_the_bank_moves_by_its_momentum_and_stays_unit() -> None:
    bank = InstanceBank(4, momentum=0.25)
    bank.hold(torch.arange(3), step=0)
    before, towards = bank.vectors.clone(), F.normalize(torch.randn(2, 4), dim=1)
    rows = bank.rows(torch.tensor([2, 0]))
    bank.update(rows, towards)
    expected = F.normalize(0.25 * before[[2, 0]] + 0.75 * towards, dim=1)
    assert torch.allclose(bank.vectors[rows], expected, atol=1e-6)
    assert torch.equal(bank.vectors[1], before[1])


def test_a_bank_loads_a_state_of_another_size() -> None:
    bank, other = InstanceBank(4), InstanceBank(4)
    bank.hold(torch.arange(6), step=2)
    other.load_state_dict(bank.state_dict())
    assert torch.equal(other.vectors, bank.vectors)
    assert len(other) == 6


def test_of_an_image_twice_in_a_batch_the_last_embedding_counts() -> None:
    bank, once = (InstanceBank(4, 0.5, seed=1) for _ in range(2))
    for one in (bank, once):
        one.hold(torch.tensor([3, 5, 9]), 0)
    embeddings = torch.eye(4)[[0, 1, 2]]
    bank.update(bank.rows(torch.tensor([5, 9, 5])), embeddings)
    once.update(once.rows(torch.tensor([5, 9])), embeddings[[2, 1]])
    assert torch.equal(bank.vectors, once.vectors)


def test_a_longer_queue_holds_what_a_shorter_one_held_and_loses_its_oldest_last() -> None:
    short, long = FeatureQueue(3, 2, seed=1), FeatureQueue(5, 2, seed=1)
    short.push(torch.arange(8.0).reshape(4, 2), torch.arange(4))  # holds 1, 2, 3; the oldest is at the cursor
    random_rows = long.vectors[3:].clone()
    long.load_state_dict(long.holding(short.vectors, short.ids, short.cursor))
    assert long.ids.tolist() == [1, 2, 3, -1, -1]
    assert torch.equal(long.vectors[3:], random_rows)
    long.push(torch.full((3, 2), 9.0), torch.tensor([7, 8, 9]))
    assert long.ids.tolist() == [9, 2, 3, 7, 8]
    assert long.holding(*long.state_dict().values())["ids"].tolist() == [9, 2, 3, 7, 8]
