"""The nearest-neighbour probe against a loop written from the definition."""

import math
from collections import defaultdict

import pytest
import torch

from ccl.evaluation import fair_voters, knn_accuracy, knn_predict


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


def test_accuracy_is_in_percent() -> None:
    train = torch.eye(4)
    labels = torch.arange(4)
    assert knn_accuracy(train, labels, train, torch.tensor([0, 1, 2, 0]), num_neighbours=1) == 75.0


def test_nonsense_is_refused() -> None:
    train, labels = torch.eye(4), torch.arange(4)
    with pytest.raises(ValueError, match="positive"):
        knn_predict(train, labels, train, num_neighbours=0)
    with pytest.raises(ValueError, match="at least one"):
        knn_predict(train[:0], labels[:0], train)
