"""Selections that represent a step by few images, against naive ones in exact arithmetic."""

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccl.memory import herding, k_center, minred, principal_components, reservoir
from ccl.memory.budget import shares

Rows = list[list[int]]
SELECTIONS = [minred, k_center, herding, principal_components]
few_rows = st.integers(1, 4).flatmap(
    lambda dim: st.lists(st.lists(st.integers(-2, 2), min_size=dim, max_size=dim), min_size=1, max_size=12)
)


def random_unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


# --- All of them


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("num", [0, 1, 2, 50])
def test_as_many_as_asked_for_each_once_and_fewer_are_the_first_of_more(
    select: Callable[..., Tensor], num: int
) -> None:
    rows = random_unit(num, 6)
    everything = select(rows, num).tolist()
    for count in (0, 1, 2, 7, 49, 50, 51):
        kept = select(rows, count)
        assert kept.dtype == torch.long
        assert len(kept) == len(set(kept.tolist())) == min(count, num)
        assert select(rows.clone(), count).tolist() == everything[:count]


@pytest.mark.parametrize("select", SELECTIONS)
def test_ties_go_to_the_earlier_image(select: Callable[..., Tensor]) -> None:
    same = random_unit(1, 5).expand(40, 5)  # more doubles than neighbours are known of
    assert select(same, 3).tolist() == [0, 1, 2]
    assert select(torch.zeros(6, 5), 2).tolist() == [0, 1]


@pytest.mark.parametrize("select", [k_center, herding, principal_components])  # a closest pair always ties
def test_it_is_the_images_that_are_chosen_not_their_places(select: Callable[..., Tensor]) -> None:
    rows, order = random_unit(30, 5), torch.randperm(30, generator=torch.Generator().manual_seed(1))
    assert order[select(rows[order], 8)].tolist() == select(rows, 8).tolist()


@pytest.mark.parametrize("select", [minred, k_center, herding])
def test_a_rotation_changes_nothing(select: Callable[..., Tensor]) -> None:
    rows = random_unit(30, 5).double()
    turned = rows @ torch.linalg.qr(random_unit(5, 5, seed=3).double()).Q
    assert select(rows, 8).tolist() == select(turned, 8).tolist()


# --- Minimum redundancy


def signed_squared_cosine(a: list[int], b: list[int]) -> Fraction:
    """Orders pairs exactly as their cosine does, without a root."""
    product = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = sum(x * x for x in a) * sum(y * y for y in b)
    return Fraction(product * abs(product), lengths) if lengths else Fraction(0)


def minred_by_hand(rows: Rows, count: int) -> list[int]:
    left = list(range(len(rows)))
    while len(left) > count:

        def nearest(i: int) -> Fraction:
            return max((signed_squared_cosine(rows[i], rows[k]) for k in left if k != i), default=Fraction(-2))

        left.remove(max(left, key=lambda i: (nearest(i), i)))  # of equals the later one goes
    return left


@settings(deadline=None, max_examples=150)
@given(rows=few_rows, count=st.integers(0, 12))
def test_the_minred_are_left(rows: Rows, count: int) -> None:
    assert sorted(minred(torch.tensor(rows).float(), count).tolist()) == minred_by_hand(rows, count)


def dropped_one_by_one(rows: Tensor, count: int) -> list[int]:
    """With the whole matrix of similarities, searched anew each time."""
    unit = F.normalize(rows.double(), dim=1).numpy()
    similarity = unit @ unit.T
    similarity = np.maximum(similarity, similarity.T)
    np.fill_diagonal(similarity, -np.inf)
    for _ in range(len(rows) - count):
        nearest = similarity.max(axis=1)
        gone = np.flatnonzero(nearest == nearest.max())[-1]
        similarity[gone, :] = similarity[:, gone] = -np.inf
        similarity[gone, gone] = -np.inf
    return [int(i) for i in np.flatnonzero(similarity.max(axis=1) > -np.inf)]


@pytest.mark.parametrize(("num_neighbours", "block"), [(32, 2**20), (1, 2**20), (3, 1000)])
def test_short_lists_of_neighbours_and_blocks_change_nothing(
    num_neighbours: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("ccl.memory.diverse_selections")
    monkeypatch.setattr(module, "_NUM_NEIGHBOURS", num_neighbours)
    monkeypatch.setattr(module, "_BLOCK", block)
    # Five groups of 60 that are near doubles: all neighbours of an image go before the image itself.
    rows = random_unit(5, 8).repeat_interleave(60, 0) + 0.02 * random_unit(300, 8, seed=1)
    for count in (2, 5, 40, 299):
        assert sorted(minred(rows, count).tolist()) == dropped_one_by_one(rows, count)


def test_near_doubles_leave_one_of_each_group() -> None:
    rows = random_unit(20, 16).repeat_interleave(10, 0) + 1e-3 * random_unit(200, 16, seed=1)
    assert sorted((minred(rows, 20) // 10).tolist()) == list(range(20))


_FULL_SIZE = """
import resource, time
import torch
from ccl.memory import minred

torch.set_num_threads(1)
rows = torch.randn(10_000, 128, generator=torch.Generator().manual_seed(0))
torch.randn(300, 300).double() @ torch.randn(300, 300).double()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
minred(rows, 400)
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_ten_thousand_images_take_seconds_and_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _FULL_SIZE], capture_output=True, text=True, check=True)
    seconds, megabytes = (float(word) for word in done.stdout.split())
    assert seconds < 10
    assert megabytes < 200  # the whole matrix would be 800


# --- The farthest first


def k_center_by_hand(rows: Rows, count: int) -> list[int]:
    def squared(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0))

    points = [[Fraction(value) for value in row] for row in rows]
    mean = [sum(column) / len(points) for column in zip(*points, strict=True)]
    kept: list[int] = []
    while len(kept) < min(count, len(rows)):
        rest = [i for i in range(len(rows)) if i not in kept]
        if kept:
            kept.append(max(rest, key=lambda i: (min(squared(points[i], points[k]) for k in kept), -i)))
        else:
            kept.append(min(rest, key=lambda i: (squared(points[i], mean), i)))
    return kept


@settings(deadline=None, max_examples=150)
@given(rows=few_rows, count=st.integers(0, 12))
def test_centres_are_the_farthest_from_each_other(rows: Rows, count: int) -> None:
    assert k_center(torch.tensor(rows).float(), count).tolist() == k_center_by_hand(rows, count)


def test_centres_cover_within_twice_the_best_radius() -> None:
    rows = random_unit(9, 3).double()
    distance = torch.cdist(rows, rows)
    for count in (1, 2, 3):
        radius = float(distance[:, k_center(rows, count)].min(dim=1).values.max())
        best = min(float(distance[:, list(c)].min(dim=1).values.max()) for c in itertools.combinations(range(9), count))
        assert best <= radius + 1e-9
        assert radius <= 2 * best + 1e-9


# --- Herding


def herding_by_hand(rows: Rows, count: int) -> list[int]:
    num = len(rows)
    mean = [Fraction(sum(column), num) for column in zip(*rows, strict=True)]
    kept: list[int] = []
    while len(kept) < min(count, num):

        def gap(i: int) -> Fraction:
            chosen = [rows[k] for k in (*kept, i)]
            means = [Fraction(sum(column), len(chosen)) for column in zip(*chosen, strict=True)]
            return sum(((a - b) ** 2 for a, b in zip(means, mean, strict=True)), Fraction(0))

        kept.append(min((i for i in range(num) if i not in kept), key=lambda i: (gap(i), i)))
    return kept


@settings(deadline=None, max_examples=150)
@given(rows=few_rows, count=st.integers(0, 12))
def test_herding_follows_the_mean(rows: Rows, count: int) -> None:
    assert herding(torch.tensor(rows).float(), count).tolist() == herding_by_hand(rows, count)


@settings(deadline=None, max_examples=60)
@given(rows=few_rows, count=st.integers(0, 12), data=st.data())
def test_herding_by_cluster(rows: Rows, count: int, data: st.DataObject) -> None:
    clusters = data.draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows)))
    members = [[i for i in range(len(rows)) if clusters[i] == c] for c in sorted(set(clusters))]
    expected = []
    for here, share in zip(members, shares(count, [len(here) for here in members]), strict=True):
        expected += [here[k] for k in herding_by_hand([rows[i] for i in here], share)]
    found = herding(torch.tensor(rows).float(), count, torch.tensor(clusters)).tolist()
    assert sorted(found) == sorted(expected)
    assert found == herding(torch.tensor(rows).float(), len(rows), torch.tensor(clusters))[:count].tolist()


# --- Principal components


def test_principal_components_by_hand() -> None:
    # Each row lies along one of three directions that are orthogonal to (1, 1, 1, 1), in either sense.
    axes = torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1], [1, 1, -1, -1]])
    rows = F.normalize(axes, dim=1)[[0, 1, 1, 1, 2, 2]] * torch.tensor([1, 0.7, -1, 0.9, 0.8, -1])[:, None]
    # Spread: direction 1 has 0.49 + 1 + 0.81, direction 2 has 1.64, direction 0 has 1.
    assert principal_components(rows, 1).tolist() == [2]
    assert principal_components(rows, 2).tolist() == [2, 5]
    assert principal_components(rows, 3).tolist() == [2, 5, 0]
    assert principal_components(rows, 5).tolist() == [2, 5, 0, 3, 4]  # a second turn


@pytest.mark.parametrize(("num", "dim", "count"), [(40, 6, 4), (40, 6, 20), (7, 12, 6)])
def test_principal_components_against_the_singular_vectors(num: int, dim: int, count: int) -> None:
    rows = F.normalize(random_unit(num, dim).double() * torch.arange(1, dim + 1), dim=1)
    matrix = rows.numpy().T  # (D, N): PCA centres each column, an image
    vectors, values, _ = np.linalg.svd(matrix - matrix.mean(axis=0), full_matrices=False)
    vectors = vectors[:, values > 1e-6]
    kept: list[int] = []
    for turn in range(count):
        direction = vectors[:, turn % vectors.shape[1]]
        distance = [min(np.linalg.norm(row - direction), np.linalg.norm(row + direction)) for row in rows.numpy()]
        kept.append(min((i for i in range(num) if i not in kept), key=lambda i: distance[i]))
    assert principal_components(rows, count).tolist() == kept


# --- The reservoir


def streamed(ids: Tensor, sizes: list[int], count: int, seed: int) -> list[int]:
    held = ids[:0]
    for arriving in torch.split(ids, sizes):
        both = torch.cat([held, arriving])
        held = both[reservoir(both, count, seed)]
    return sorted(held.tolist())


def test_a_reservoir_does_not_depend_on_how_the_stream_is_cut() -> None:
    ids = torch.randperm(60, generator=torch.Generator().manual_seed(0)) * 7
    at_once = streamed(ids, [60], 10, 3)
    assert len(at_once) == 10
    for sizes in ([1] * 60, [5, 40, 15], [30, 0, 30]):
        assert streamed(ids, sizes, 10, 3) == at_once
    assert streamed(ids.flip(0), [20, 40], 10, 3) == at_once
    assert streamed(ids, [60], 10, 4) != at_once
    assert set(streamed(ids, [60], 5, 3)) < set(at_once)


def test_a_reservoir_of_all_and_of_none() -> None:
    ids = torch.tensor([9, 4, 7])
    assert reservoir(ids, 5, 0).tolist() == reservoir(ids, 3, 0).tolist()
    assert sorted(reservoir(ids, 3, 0).tolist()) == [0, 1, 2]
    assert reservoir(ids, 0, 0).tolist() == []
    assert reservoir(ids[:0], 5, 0).tolist() == []


def test_every_image_of_the_stream_is_held_equally_often() -> None:
    num_seeds, ids = 2000, torch.arange(20)
    times = torch.zeros(20)
    for seed in range(num_seeds):
        times[streamed(ids, [8, 8, 4], 5, seed)] += 1
    expected, spread = num_seeds * 5 / 20, (num_seeds * 0.25 * 0.75) ** 0.5
    assert ((times - expected).abs() < 4 * spread).all()
    assert 5 < float(((times - expected) ** 2).sum() / spread**2 * 19 / 20) < 45  # about 19, as chi-square
