"""Randomness as a pure function."""

import numpy as np
import pytest
import torch
from scipy import stats

from ccl.seeding import generator, hashed, permutation, seeded, uniform


def test_values_are_fixed_forever() -> None:
    """A change here changes every run ever made: resumed streams would no longer fit."""
    assert hashed(0, "view", 3, -1) == 4412206147672368082
    assert uniform(torch.tensor([0, 7]), 2, 1, "view").flatten().tolist() == pytest.approx(FIXED, abs=0)


FIXED = [0.3110068440437317, 0.373568058013916, 0.4151579737663269, 0.43994373083114624]


def test_a_row_depends_on_its_own_id_only() -> None:
    ids = torch.tensor([5, 900, -3, 2**40])
    whole = uniform(ids, 6, 0, "view", 1)
    for row in range(4):
        assert torch.equal(uniform(ids[row : row + 1], 6, 0, "view", 1)[0], whole[row])
    assert torch.equal(uniform(ids.flip(0), 6, 0, "view", 1).flip(0), whole)
    assert torch.equal(uniform(ids, 3, 0, "view", 1), whole[:, :3])


@pytest.mark.parametrize("other", [(1, "view", 1), (0, "crop", 1), (0, "view", 2), (0, 1, "view"), (0, "view", 1, 0)])
def test_every_part_of_the_context_counts(other: tuple[int | str, ...]) -> None:
    ids = torch.arange(50)
    assert not (uniform(ids, 4, 0, "view", 1) == uniform(ids, 4, *other)).any(dim=1).all()


def test_a_turn_gives_other_draws_and_turn_0_the_same() -> None:
    ids = torch.arange(50)
    first = uniform(ids, 6, 0, "view", 1)
    assert torch.equal(uniform(ids, 6, 0, "view", 1, turns=torch.zeros(50, dtype=torch.int64)), first)
    turns = torch.arange(50) % 3
    mixed = uniform(ids, 6, 0, "view", 1, turns=turns)
    assert torch.equal(mixed[turns == 0], first[turns == 0])
    assert not (mixed == first)[turns > 0].any()
    for turn in (1, 2):
        alike = uniform(ids, 6, 0, "view", 1, turns=torch.full((50,), turn))
        assert torch.equal(mixed[turns == turn], alike[turns == turn])
        assert not (alike == uniform(ids, 6, 0, "view", 1, turns=torch.full((50,), 3 - turn))).any()
    # A turn is neither a view, nor an epoch, nor another image.
    again = uniform(ids, 6, 0, "view", 1, turns=torch.ones(50, dtype=torch.int64))
    for other in (uniform(ids, 6, 0, "view", 1, 1), uniform(ids, 6, 0, "view", 2), uniform(ids + 1, 6, 0, "view", 1)):
        assert not (again == other).any()


def test_draws_of_turns_are_uniform_and_independent() -> None:
    ids = torch.arange(20_000)
    draws = [uniform(ids, 2, 11, "test", turns=torch.full((20_000,), turn)) for turn in range(3)]
    table = torch.cat(draws, 1).double().numpy()  # (N, 6)
    for column in table.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(table.T) - np.eye(6)).max() < 0.03


def test_draws_are_uniform_and_independent() -> None:
    draws = uniform(torch.arange(20_000), 3, 11, "test").double().numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in range(3):
        assert stats.kstest(draws[:, column], "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.03
    neighbours = np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]
    assert abs(neighbours) < 0.03


def test_a_permutation_is_one_and_changes_with_the_epoch() -> None:
    ids = torch.arange(100, 400)
    first, second = permutation(ids, 0, 1), permutation(ids, 0, 2)
    assert sorted(first.tolist()) == list(range(300))
    assert not torch.equal(first, second)
    assert (first == second).float().mean() < 0.05


def test_generators_and_seeded_blocks_leave_the_global_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, "encoder"):
        inside = torch.rand(3)
    generator(2)
    assert torch.equal(torch.rand(3), expected)
    with seeded(1, "encoder"):
        assert torch.equal(torch.rand(3), inside)
