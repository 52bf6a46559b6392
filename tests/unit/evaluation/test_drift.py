"""Drift without labels: hand-made cases, naive loops, and what must not matter."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccl.evaluation import Drift, Reading
from ccl.evaluation import drift as drift_module
from ccl.evaluation.drift import centroid_drift, group_agreement, neighbour_overlap
from ccl.evaluation.health import alignment, effective_rank


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(dim: int, seed: int = 9) -> Tensor:
    return torch.linalg.qr(draw(dim, dim, seed=seed)).Q


def at_angles(*degrees: float) -> Tensor:
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def naive_neighbours(rows: Tensor, k: int) -> list[set[int]]:
    unit = rows / rows.norm(dim=1, keepdim=True)
    found = []
    for i in range(len(rows)):
        others = sorted((-round(float(unit[i] @ unit[j]), 9), j) for j in range(len(rows)) if j != i)
        found.append({j for _, j in others[:k]})
    return found


@pytest.mark.parametrize(("k", "entries"), [(1, 2**24), (3, 70), (10, 1), (500, 90)])
def test_overlap_equals_a_naive_loop_in_any_chunks(k: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_module, "_ENTRIES", entries)
    before, after = draw(23, 6), draw(23, 6) + 0.5 * draw(23, 6, seed=1)
    most = min(k, 22)
    pairs = zip(naive_neighbours(before, most), naive_neighbours(after, most), strict=True)
    assert neighbour_overlap(before, after, k) == pytest.approx(sum(len(a & b) for a, b in pairs) / (most * 23))


def test_neighbours_stay_when_space_is_turned_mirrored_or_scaled() -> None:
    rows = draw(40, 5)
    mirrored = rows * torch.tensor([-1.0, 1, 1, 1, 1])
    for after in (rows, rows @ rotation(5), 7 * rows, mirrored, torch.cat([rows, torch.zeros(40, 3)], dim=1)):
        assert neighbour_overlap(rows, after) == 1.0
        assert neighbour_overlap(rows.float(), after.float()) == 1.0


def test_overlap_by_hand() -> None:
    # Two pairs: 0-1 and 2-3; then 1 and 2 change places, so that nobody keeps its nearest.
    before, after = at_angles(0, 10, 90, 100), at_angles(0, 90, 10, 100)
    assert neighbour_overlap(before, after, k=1) == 0.0
    # Of two nearest: 0 has 1,2 and then 2,1; 1 has 0,2 and then 3,2; 2 has 3,1 and 0,1; 3 has 2,1 and 1,2.
    assert neighbour_overlap(before, after, k=2) == pytest.approx((1 + 0.5 + 0.5 + 1) / 4)
    assert neighbour_overlap(before, after, k=3) == 1.0  # all others
    # Only 3 moves, to the other pair: 0 and 1 keep each other, 2 and 3 keep nothing.
    assert neighbour_overlap(before, at_angles(0, 10, 90, -15), k=1) == pytest.approx(0.5)


def test_equally_near_rows_are_taken_in_their_order() -> None:
    same = torch.ones(6, 3)
    for rows in (same, torch.zeros(6, 3)):
        masks = torch.cat(list(drift_module._neighbours(rows, 2)))
        assert [row.nonzero().flatten().tolist() for row in masks] == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1]]
    assert neighbour_overlap(same, torch.zeros(6, 3), k=2) == 1.0


def test_unrelated_rows_overlap_by_chance_only() -> None:
    assert neighbour_overlap(draw(400, 16), draw(400, 16, seed=1), k=10) == pytest.approx(10 / 399, abs=0.01)


def naive_agreement(rows: Tensor, groups: list[int], k: int) -> float:
    right, count = 0.0, 0
    for i, nearest in enumerate(naive_neighbours(rows, min(k, len(rows) - 1))):
        if groups.count(groups[i]) < 2:
            continue
        votes = [groups[j] for j in nearest]
        most = max(votes.count(group) for group in votes)
        winners = {group for group in votes if votes.count(group) == most}
        right += (groups[i] in winners) / len(winners)
        count += 1
    return 100 * right / count if count else math.nan


@given(groups=st.lists(st.integers(-2, 4), min_size=6, max_size=25), k=st.integers(1, 30), seed=st.integers(0, 99))
def test_agreement_equals_a_naive_loop(groups: list[int], k: int, seed: int) -> None:
    rows = draw(len(groups), 3, seed=seed)
    # Not a fixture: hypothesis makes many examples of one call.
    drift_module._ENTRIES, kept = 3 * len(groups), drift_module._ENTRIES
    try:
        answer = group_agreement(rows, torch.tensor(groups), k)
    finally:
        drift_module._ENTRIES = kept
    assert answer == pytest.approx(naive_agreement(rows, groups, k), nan_ok=True)


def test_agreement_by_hand() -> None:
    rows = at_angles(0, 2, 4, 90, 92, 94)
    assert group_agreement(rows, torch.tensor([5, 5, 5, 7, 7, 7]), k=2) == 100.0
    assert group_agreement(rows, torch.tensor([5, 7, 5, 7, 5, 7]), k=1) == 0.0
    assert group_agreement(rows, torch.tensor([1, 1, 2, 3, 3, 4]), k=1) == 100.0  # 2 and 4 are alone and don't count
    assert math.isnan(group_agreement(rows, torch.arange(6)))
    # Row 1 lies between one of its own group and a stranger: half a point; 0 and 3 have a stranger or their own first.
    line = at_angles(0, 10, 20)
    assert group_agreement(line, torch.tensor([1, 1, 2]), k=2) == pytest.approx(100 * (0.5 + 0.5) / 2)


def test_centroids_stay_when_the_whole_space_is_turned() -> None:
    rows, groups = draw(60, 8) + 2 * draw(1, 8, seed=3), torch.arange(60) % 5
    turned = rows @ rotation(8)
    assert centroid_drift(rows, rows, groups) == pytest.approx(0.0, abs=1e-12)
    assert centroid_drift(rows, 3 * turned, groups) == pytest.approx(0.0, abs=1e-12)
    assert centroid_drift(rows, turned, groups, align=False) > 0.1
    assert centroid_drift(rows, rows, groups, align=False) == pytest.approx(0.0, abs=1e-12)


def test_centroid_drift_by_hand() -> None:
    before, groups = at_angles(-5, 5, 85, 95), torch.tensor([0, 0, 4, 4])
    # The first group stays, the second turns by 60 degrees: without alignment the mean of 0 and 1 - cos 60°.
    after = at_angles(-5, 5, 25, 35)
    assert centroid_drift(before, after, groups, align=False) == pytest.approx((0 + 0.5) / 2)
    # Aligned, the best turn shares the angle: each centroid is off by 30 degrees.
    assert centroid_drift(before, after, groups) == pytest.approx(1 - math.cos(math.radians(30)))
    # Groups have equal weight, whatever their size.
    more = torch.cat([before, before[:2], before[:2]]), torch.cat([after, after[:2], after[:2]])
    assert centroid_drift(*more, torch.tensor([0, 0, 4, 4, 0, 0, 0, 0]), align=False) == pytest.approx(0.25)
    assert centroid_drift(before, -before, groups, align=False) == pytest.approx(2.0)
    assert centroid_drift(before, -before, groups) == pytest.approx(0.0, abs=1e-12)


def test_alignment_does_not_hide_groups_that_change_places() -> None:
    rows = torch.eye(3, dtype=torch.float64).repeat_interleave(4, dim=0) + 0.05 * draw(12, 3)
    groups = torch.arange(3).repeat_interleave(4)
    half = rows.clone()
    half[[1, 5]] = rows[[5, 1]]  # one of the first group for one of the second
    assert centroid_drift(rows, half, groups) > 0.01


def reading(features: Tensor, noise: float = 0.1) -> Reading:
    return Reading(features, features, features + noise * draw(*features.shape, seed=7))


def clusters(num: int = 40, dim: int = 8) -> tuple[Tensor, Tensor]:
    groups = torch.arange(num) % 4
    return 3 * draw(4, dim, seed=5)[groups] + draw(num, dim), groups


def test_a_drift_holds_what_the_functions_say() -> None:
    rows, groups = clusters(100)
    before, after = reading(rows), reading(rows + draw(100, 8, seed=2), noise=0.3)
    drift = Drift.of(before, after, groups)
    assert drift.num_rows == 100
    assert drift.neighbour_overlap == neighbour_overlap(before.features, after.features, 10)
    assert drift.centroid_drift == centroid_drift(before.features, after.features, groups)
    assert drift.alignment == tuple(alignment(one.first, one.second) for one in (before, after))
    assert drift.effective_rank == tuple(effective_rank(one.first) for one in (before, after))
    assert drift.group_agreement == tuple(group_agreement(one.features, groups) for one in (before, after))
    assert drift.uniformity[0] < 0
    assert drift.reasons == ()


def test_few_images_have_few_neighbours_so_that_chance_stays_small() -> None:
    rows, groups = clusters(30)
    drift = Drift.of(reading(rows), reading(draw(30, 8, seed=4)), groups)
    assert drift.neighbour_overlap == neighbour_overlap(rows, draw(30, 8, seed=4), k=3)


def test_collapse_is_told() -> None:
    start, groups = clusters()
    zero = torch.zeros(40, 8)
    for before in (None, reading(start)):
        assert Drift.of(before, Reading(zero, zero, zero), groups).reasons == ("all embeddings are zero",)
    # A sound encoder after a collapsed one is not called collapsed.
    assert not Drift.of(Reading(zero, zero, zero), reading(start), groups).reasons


def test_nan_in_features_alone_is_told_too() -> None:
    start, groups = clusters()
    broken = start.clone()
    broken[3, 2] = math.nan
    drift = Drift.of(reading(start), Reading(broken, start, start), groups)
    assert drift.reasons == ("the features contain nan or infinity",)
    assert math.isnan(drift.neighbour_overlap)
    assert math.isnan(drift.centroid_drift)
    assert math.isnan(drift.group_agreement[1])
    assert not math.isnan(drift.group_agreement[0])
    after = Drift.of(Reading(broken, start, start), reading(start), groups)
    assert (after.reasons, math.isnan(after.neighbour_overlap)) == ((), True)


def test_the_first_step_has_no_before() -> None:
    rows, groups = clusters()
    drift = Drift.of(None, reading(rows), groups)
    assert math.isnan(drift.neighbour_overlap)
    assert math.isnan(drift.centroid_drift)
    assert [math.isnan(pair[0]) for pair in (drift.alignment, drift.uniformity, drift.effective_rank)] == [True] * 3


@pytest.mark.parametrize("num", [0, 1, 2])
def test_few_rows_are_measured_where_they_can_be(num: int) -> None:
    rows, groups = draw(num, 8), torch.arange(num)
    drift = Drift.of(reading(rows), reading(rows), groups)
    assert drift.neighbour_overlap == 1.0 if num == 2 else math.isnan(drift.neighbour_overlap)
    assert drift.centroid_drift == pytest.approx(0.0, abs=1e-12) if num else math.isnan(drift.centroid_drift)
    assert math.isnan(drift.effective_rank[1]) is (num < 2)


def test_a_drift_is_json_values() -> None:
    rows, groups = clusters()
    drift = Drift.of(reading(rows), reading(rows + draw(40, 8, seed=2)), groups)
    told = json.loads(json.dumps(drift.as_dict(), allow_nan=False))
    assert told["neighbour_overlap"] == drift.neighbour_overlap
    assert told["alignment"] == list(drift.alignment)
    first = Drift.of(None, reading(rows), groups)
    told = json.loads(json.dumps(first.as_dict(), allow_nan=False))
    assert told["neighbour_overlap"] is None
    assert told["group_agreement"] == [None, first.group_agreement[1]]
