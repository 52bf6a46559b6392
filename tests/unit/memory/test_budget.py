"""A memory of limited size: shares, the order in which images go, and what is left."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccl.data import ArraySource, EncodedSource
from ccl.memory import RehearsalMemory
from ccl.memory.budget import Budget, in_turns, shares, survivors, within

NAN = float("nan")


def test_shares_by_hand() -> None:
    assert shares(12, [100]) == [12]
    assert shares(12, [100, 100, 100]) == [4, 4, 4]
    assert shares(11, [100, 100, 100]) == [4, 4, 3]
    assert shares(12, [2, 100, 100]) == [2, 5, 5]
    assert shares(12, [100, 1, 3]) == [8, 1, 3]
    assert shares(12, [1, 2, 3]) == [1, 2, 3]
    assert shares(2, [5, 5, 5]) == [1, 1, 0]
    assert shares(5, []) == []


def dealt(limit: int, wanted: list[int]) -> list[int]:
    """One at a time, in rounds, to whoever wants more."""
    given = [0] * len(wanted)
    while sum(given) < min(limit, sum(wanted)):
        for number, want in enumerate(wanted):
            if given[number] < want and sum(given) < limit:
                given[number] += 1
    return given


@given(limit=st.integers(0, 60), wanted=st.lists(st.integers(0, 30), max_size=7))
def test_shares_are_dealt_one_at_a_time(limit: int, wanted: list[int]) -> None:
    assert shares(limit, wanted) == dealt(limit, wanted)


def test_the_order_takes_turns_over_clusters() -> None:
    scores = torch.tensor([0.5, 0.1, 0.3, 0.2, 0.9, 0.05])
    clusters = torch.tensor([0, 0, 0, 0, 1, 2])
    #  first turn: 5 (0.05), 1 (0.1), 4 (0.9); then cluster 0 alone: 3, 2, 0
    assert in_turns(scores, clusters, torch.arange(6), 0).tolist() == [5, 1, 4, 3, 2, 0]


def test_images_without_scores_are_in_an_order_of_their_ids() -> None:
    ids = torch.arange(40) * 3
    scores, clusters = torch.full((40,), NAN), torch.full((40,), -1)
    order = in_turns(scores, clusters, ids, 0, 2)
    assert sorted(order.tolist()) == list(range(40))
    assert order.tolist() != list(range(40))
    assert order.tolist() != in_turns(scores, clusters, ids, 0, 3).tolist()
    some = torch.arange(1, 40, 2)  # the order of those that are left stays
    left = in_turns(scores[some], clusters[some], ids[some], 0, 2)
    assert ids[some][left].tolist() == [number for number in ids[order].tolist() if number in ids[some].tolist()]


def test_what_fits_in_a_share() -> None:
    assert within([3, 3, 3, 3], 9) == [0, 1, 2]
    assert within([3, 20, 3, 3, 3], 9) == [0, 2, 3]  # 20 can never fit
    assert within([4, 4, 4, 1], 9) == [0, 1]  # nothing behind the first that finds no room
    assert within([20], 9) == []
    reads = iter(range(1, 100))
    assert within(reads, 6) == [0, 1, 2]
    assert next(reads) == 5  # no more was looked at than it took


class Memory:
    """Tables of a memory, as the real one holds them."""

    def __init__(self, data: st.DataObject, most: int) -> None:
        num = data.draw(st.integers(0, 40))
        numbers = st.lists(st.integers(0, 3), min_size=num, max_size=num)
        self.steps, self.clusters = torch.tensor(data.draw(numbers)).long(), torch.tensor(data.draw(numbers)).long()
        some = st.lists(st.sampled_from([0.1, 0.2, 0.3, NAN]), min_size=num, max_size=num)
        self.scores = torch.tensor(data.draw(some)).float()
        self.sizes = torch.tensor(data.draw(st.lists(st.integers(1, most), min_size=num, max_size=num))).long()
        self.ids = torch.arange(num) * 7

    def survivors(self, limit: int) -> Tensor:
        return survivors(limit, self.sizes, self.steps, self.clusters, self.scores, self.ids, 0)

    def only(self, positions: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[positions])


@settings(deadline=None, max_examples=80)
@given(data=st.data(), limit=st.integers(1, 30))
def test_images_within_a_budget(data: st.DataObject, limit: int) -> None:
    memory = Memory(data, most=1)
    kept = memory.survivors(limit)
    assert kept.tolist() == memory.survivors(limit).tolist() == sorted(set(kept.tolist()))
    assert len(kept) == min(limit, len(memory.ids))
    counts, before = memory.steps[kept].bincount(minlength=4), memory.steps.bincount(minlength=4)
    trimmed = counts[counts < before]
    assert len(trimmed) == 0 or int(counts.max()) - int(trimmed.min()) <= 1  # none has two more than one that gave
    for step in range(4):  # within a step no cluster has two more than one that lost an image
        mine, all_of_it = memory.steps[kept] == step, memory.steps == step
        held, had = (memory.clusters[c].bincount(minlength=4) for c in (kept[mine], all_of_it))
        lost = held[held < had]
        assert len(lost) == 0 or int(held.max()) - int(lost.min()) <= 1
        for gone in set(torch.nonzero(all_of_it).flatten().tolist()) - set(kept.tolist()):
            beside = kept[mine & (memory.clusters[kept] == memory.clusters[gone])]
            assert not (memory.scores[beside] > memory.scores[gone]).any()  # the highest scores of a cluster go


@settings(deadline=None, max_examples=80)
@given(data=st.data(), limit=st.integers(1, 200), less=st.integers(0, 200))
def test_bytes_within_a_budget_and_a_smaller_one(data: st.DataObject, limit: int, less: int) -> None:
    memory = Memory(data, most=40)
    kept = memory.survivors(limit)
    assert int(memory.sizes[kept].sum()) <= limit
    given_ = shares(limit, [int(memory.sizes[memory.steps == step].sum()) for step in memory.steps.unique()])
    for step, share in zip(memory.steps.unique(), given_, strict=True):
        mine = memory.sizes[kept[memory.steps[kept] == step]]
        fitting = memory.sizes[(memory.steps == step) & (memory.sizes <= share)]
        # All that can fit is there, or so much that one more would not have found room.
        assert len(mine) == len(fitting) or int(mine.sum()) + int(fitting.max()) > share
    memory.only(kept)
    assert memory.survivors(limit).tolist() == list(range(len(kept)))  # once is enough
    assert set(memory.survivors(min(less, limit)).tolist()) <= set(range(len(kept)))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), limit=st.integers(2, 30))
def test_a_memory_of_images_shrinks_by_the_same_way_in_one_go_or_two(data: st.DataObject, limit: int) -> None:
    memory = Memory(data, most=1)
    at_once = memory.ids[memory.survivors(limit // 2)].tolist()
    memory.only(memory.survivors(limit))
    assert memory.ids[memory.survivors(limit // 2)].tolist() == at_once


def encoded(sizes: list[int], first_id: int) -> EncodedSource:
    return EncodedSource([bytes(size) for size in sizes], first_id + torch.arange(len(sizes)))


def test_a_memory_keeps_positions_in_their_order() -> None:
    memory = RehearsalMemory()
    images = ArraySource(torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8))
    memory.add(images, torch.arange(5), 2, torch.arange(5), torch.arange(5) / 10)
    files = list(memory.files)
    memory.keep(torch.tensor([1, 4]))
    assert memory.files == [files[1], files[4]]
    assert (memory.ids.tolist(), memory.steps.tolist(), memory.clusters.tolist()) == ([1, 4], [2, 2], [1, 4])
    assert memory.scores.tolist() == pytest.approx([0.1, 0.4])
    memory.keep(torch.zeros(0, dtype=torch.long))
    assert len(memory) == len(memory.state_dict()["bytes"]) == 0


@pytest.mark.parametrize(("budget", "sizes"), [(Budget(10, "images"), [3] * 20), (Budget(100, "bytes"), [9] * 20)])
def test_steps_share_a_budget_as_they_come(budget: Budget, sizes: list[int]) -> None:
    memory, room = RehearsalMemory(), []
    for step in range(4):
        room.append(memory.room(budget))
        source, count = encoded(sizes, 100 * step), room[-1] // budget.size(bytes(sizes[0]))
        about = torch.zeros(count, dtype=torch.long), torch.arange(count).float()
        memory.add(source, torch.arange(count), step, *about)
        memory.trim(budget, 0)
        assert sum(map(budget.size, memory.files)) <= budget.limit
        counts = memory.steps.bincount(minlength=step + 1).tolist()
        assert max(counts) - min(counts) <= 1
        assert memory.scores.max() < max(counts)  # of each step the lowest scores
    assert room == ([10, 5, 3, 2] if budget.unit == "images" else [100, 50, 33, 25])
    assert counts == ([3, 3, 2, 2] if budget.unit == "images" else [3, 3, 3, 2])  # 9 bytes each: what 25 leaves goes on
