"""Nearest neighbours, the score of both probes, and recognition in another view."""

import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from ccl.evaluation import (
    ProbeScore,
    confusion_matrix,
    fair_voters,
    knn_predict,
    recognition,
    score_features,
)


def naive(train, labels, test, num_neighbours, temperature) -> list[int]:
    predicted = []
    for query in test.double():
        similarity = [(float(query @ row / (query.norm() * row.norm())), n) for n, row in enumerate(train.double())]
        votes: dict[int, float] = defaultdict(float)
        for value, n in sorted(similarity, reverse=True)[:num_neighbours]:
            votes[int(labels[n])] += math.exp(value / temperature)
        predicted.append(max(sorted(votes), key=lambda label: votes[label]))
    return predicted


@pytest.mark.parametrize(("num_neighbours", "temperature"), [(1, 0.07), (5, 0.07), (20, 0.07), (20, 1.0), (200, 0.07)])
def test_equals_a_naive_loop(num_neighbours, temperature) -> None:
    draws = torch.Generator().manual_seed(0)
    train, test = torch.randn(60, 6, generator=draws), torch.randn(50, 6, generator=draws)
    train = train * torch.rand(60, 1, generator=draws)  # lengths must not matter
    labels = torch.randint(0, 4, (60,), generator=draws) * 10 - 7
    predicted = knn_predict(train, labels, test, num_neighbours, temperature, chunk_size=16)
    assert predicted.tolist() == naive(train, labels, test, num_neighbours, temperature)


def test_a_near_neighbour_outweighs_several_far_ones() -> None:
    angles = torch.tensor([0.1, 1.0, 1.0, 1.0])
    train = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels, query = torch.tensor([5, 9, 9, 9]), torch.tensor([[1.0, 0.0]])
    # exp(cos(0.1)/T) against 3 exp(cos(1)/T): e^14.2 > 3 e^7.7 at T = 0.07, but e^0.995 < 3 e^0.54 at T = 1.
    assert knn_predict(train, labels, query, temperature=0.07).tolist() == [5]
    assert knn_predict(train, labels, query, temperature=1.0).tolist() == [9]
    assert knn_predict(train, labels, query, temperature=1e-4).tolist() == [5]  # exp(1e4) alone would overflow


@pytest.mark.parametrize(
    ("num_rows", "num_classes", "voters"), [(48, 8, 6), (50_000, 100, 200), (7, 2, 3), (3, 5, 1), (9_800, 70, 140)]
)
def test_as_many_vote_as_a_class_has_images_up_to_200(num_rows: int, num_classes: int, voters: int) -> None:
    assert fair_voters(num_rows, num_classes) == voters


def test_nonsense_is_refused() -> None:
    train, labels = torch.eye(4), torch.arange(4)
    with pytest.raises(ValueError, match="positive"):
        knn_predict(train, labels, train, num_neighbours=0)
    with pytest.raises(ValueError, match="at least one"):
        knn_predict(train[:0], labels[:0], train)


def test_confusion_by_hand() -> None:
    labels, predicted = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 0, 2, 0])
    assert confusion_matrix(labels, predicted, 4).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]


def test_clearly_above_is_two_standard_errors_of_the_difference() -> None:
    low, num = ProbeScore(36.0, 30.0, 200), 200
    assert low.linear_error == math.sqrt(36 * 64 / num)
    assert low.knn_error == math.sqrt(30 * 70 / num)
    # √(36·64/200 + 45·55/200) = 4.89, twice is 9.8 points
    assert not ProbeScore(45.0, 0.0, num).is_clearly_above(low)
    assert ProbeScore(46.5, 0.0, num).is_clearly_above(low)
    assert not low.is_clearly_above(ProbeScore(36.5, 0.0, num))
    assert ProbeScore(45.0, 0.0, 2000).is_clearly_above(ProbeScore(36.0, 30.0, 2000))


def test_separable_rows_are_told_apart_by_both_probes() -> None:
    labels = torch.arange(40) % 2
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) + 20 * labels[:, None] - 10
    score, linear = score_features(rows[:30], labels[:30], rows[30:], 1 - labels[30:])
    assert (score.linear, score.knn, score.num_test) == (0.0, 0.0, 10)  # every test label is wrong
    assert torch.equal(linear.predict(rows[30:]), labels[30:])


def by_hand(first: Tensor, second: Tensor) -> float:
    """For each row the rows of the other view by cosine; the best must be its own."""
    right = 0
    for place, row in enumerate(first.tolist()):
        cosines = [
            sum(a * b for a, b in zip(row, other, strict=True)) / (math.hypot(*row) * math.hypot(*other))
            for other in second.tolist()
        ]
        right += cosines.index(max(cosines)) == place
    return 100 * right / len(first)


def test_as_a_plain_loop_has_it() -> None:
    draws = torch.Generator().manual_seed(0)
    first = torch.randn(40, 6, generator=draws)
    second = first + 0.8 * torch.randn(40, 6, generator=draws)
    found = recognition(first, second)
    assert found == pytest.approx(by_hand(first, second))
    assert 30 < found < 95  # neither all nor none, so that the loop can disagree
    assert recognition(3 * first, second * torch.arange(1, 41)[:, None]) == pytest.approx(found)  # lengths say nothing
    turned = torch.linalg.qr(torch.randn(6, 6, generator=draws))[0]
    assert recognition(first @ turned, second @ turned) == pytest.approx(found)


def test_bounds_and_draws() -> None:
    rows = torch.eye(8)
    assert recognition(rows, rows) == 100.0
    assert recognition(rows, rows.roll(1, 0)) == 0.0
    assert recognition(torch.ones(8, 3), torch.ones(8, 3)) == pytest.approx(100 / 8)  # collapsed: as by chance
    pairs = rows[:4].repeat_interleave(2, 0)  # two images look alike: a draw of two
    assert recognition(pairs, pairs) == pytest.approx(50.0)


def test_nothing_to_measure() -> None:
    assert math.isnan(recognition(torch.ones(1, 3), torch.ones(1, 3)))
    assert math.isnan(recognition(torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1)))
