"""A linear and a nearest-neighbour probe of one kind of features, and whether one kind is better than another."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl.evaluation.knn_probe import fair_voters, knn_accuracy
from ccl.evaluation.linear_probe import LinearClassifier, fit, standard_error

CLEAR = 2.0  # standard errors of a difference that are taken as one


@dataclass(frozen=True)
class ProbeScore:
    """Accuracies on test images, in percent, with the standard error of each, in points."""

    linear: float
    knn: float
    num_test: int

    @property
    def linear_error(self) -> float:
        return standard_error(self.linear, self.num_test)

    @property
    def knn_error(self) -> float:
        return standard_error(self.knn, self.num_test)

    def is_clearly_above(self, other: "ProbeScore") -> bool:
        """Whether the linear accuracy is higher by more than two standard errors of the difference.

        Cautious: both are of the same images, so the difference of two probes is known better than that.
        """
        return self.linear - other.linear > CLEAR * math.hypot(self.linear_error, other.linear_error)


def score_features(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor
) -> tuple[ProbeScore, LinearClassifier]:
    """Fit both probes on the training rows (N, F) and measure them on the test rows (M, F)."""
    linear = fit(train, train_labels)
    voters = fair_voters(len(train), len(linear.classes))
    neighbours = knn_accuracy(train, train_labels, test, test_labels, voters)
    return ProbeScore(linear.accuracy(test, test_labels), neighbours, len(test)), linear


def confusion_matrix(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """How many test images of class i were taken for class j: (M,), (M,) -> int64 (C, C)."""
    pairs = labels.cpu().long() * num_classes + predicted.cpu().long()
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
