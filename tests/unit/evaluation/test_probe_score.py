"""Scores of probes: counts by hand, and when one kind of features is clearly better than another."""

import math

import torch

from ccl.evaluation import ProbeScore, confusion_matrix, score_features


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
