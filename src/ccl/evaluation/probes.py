"""Probes of frozen features by the protocol "cached": logistic regression, and the vote of the nearest neighbours."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.evaluation.logistic_regression import LogisticRegression, Solution
from ccl.seeding import permutation

CACHED_PROTOCOL = (
    "linear, cached: plain images' features, standardised, logistic regression, "
    "l2 of least cross-entropy on a held-out fifth, without a grid; kNN by as many as a class has images, up to 200"
)
USUAL_FACTOR = 0.1  # l2 is a factor times F/N: where the search begins, and what few rows take
FACTOR_RATIO = 10**0.5  # from one place of the search to the next
MOST_PLACES = {1: 6, -1: 10}  # from the usual factor: to 100 where stronger is better, to 1e-6 where weaker is
_SEARCH_TOLERANCE = 0.03  # the objective to some 5e-4: places differ by more
_FLOAT64_BELOW = 1e-4  # tolerances that float32 can't reach
CLEAR = 2.0  # standard errors of a difference that are taken as one


@dataclass(frozen=True)
class LinearClassifier:
    """Logits are `((features - centre) / scale) @ weights.T + bias`; row c stands for the label `classes[c]`."""

    weights: Tensor  # (C, F)
    bias: Tensor  # (C,)
    centre: Tensor  # (F,)
    scale: Tensor  # (F,)
    classes: Tensor  # (C,) int64, ascending

    def logits(self, features: Tensor) -> Tensor:
        """(N, F) -> (N, C)."""
        return ((features.cpu().float() - self.centre) / self.scale) @ self.weights.T + self.bias

    def predict(self, features: Tensor) -> Tensor:
        """(N, F) -> labels (N,), in the numbers that were used for fitting."""
        return self.classes[self.logits(features).argmax(dim=1)]

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """Top-1 in percent; a label that was not there at fitting counts as an error."""
        check_pairs(features, labels)
        return 100.0 * float((self.predict(features) == labels.cpu()).double().mean())


def check_pairs(features: Tensor, labels: Tensor) -> None:
    """Refuse what no probe can use: other shapes than (N, F) and (N,), no rows, labels that aren't integers, nan."""
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        shapes = f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"features and labels must be (N, F) and (N,), got {shapes}")
    if not len(features):
        raise ValueError("a probe needs at least one labelled image")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if not torch.isfinite(features).all():
        raise ValueError("features contain nan or infinity")


def enumerate_labels(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct labels (C,), ascending, and each row's place among them (N,)."""
    classes, targets = torch.unique(labels.cpu().long(), return_inverse=True)
    return classes, targets


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, (F,) and (F,), float32; a constant feature has deviation 1."""
    wide = features.cpu().double()
    centre, deviation = wide.mean(dim=0), wide.std(dim=0, correction=0)
    # Rounding alone makes a constant float32 feature deviate by some 1e-7 of its value.
    is_constant = deviation <= 1e-6 * centre.abs()
    return centre.float(), torch.where(is_constant, 1.0, deviation).float()


def choose_l2(problem: LogisticRegression) -> tuple[float, Solution | None]:
    """The l2 with the least cross-entropy on a fifth of the rows when the others are fitted, and a start from there.

    The search walks in factors of √10 until the least is inside, or to an end of `MOST_PLACES`, and takes the vertex of
    the parabola through the least three over log l2. Too few rows to hold some out take the usual factor, and no start.
    """
    # Random encoders want a strong penalty and trained ones a weak one, several points apart: no constant serves both.
    num_rows, num_features = len(problem.rows), problem.rows.shape[1] - 1
    scale = num_features / num_rows
    if num_rows < 5 * problem.num_classes:
        return USUAL_FACTOR * scale, None
    order = permutation(torch.arange(num_rows), "held out for l2")
    held_out, rest = problem.subset(order[: num_rows // 5]), problem.subset(order[num_rows // 5 :])
    solutions: dict[int, Solution] = {}
    losses: dict[int, float] = {}

    def visit(place: int, start: Solution | None) -> float:
        if place not in losses:
            l2 = USUAL_FACTOR * FACTOR_RATIO**place * num_features / len(rest.rows)
            solutions[place] = rest.minimise(l2, _SEARCH_TOLERANCE, 200, start)
            # Cross-entropy is smoother than accuracy on few rows.
            losses[place] = float(F.cross_entropy(held_out.logits(solutions[place]), held_out.targets))
        return losses[place]

    way = 1 if visit(0, None) <= visit(-1, solutions[0]) else -1
    best = min(way, 0)
    while abs(best) < MOST_PLACES[way] and visit(best + way, solutions[best]) < losses[best]:
        best += way
    vertex = 0.0
    if best + way in losses:
        before, least, after = (losses[best + offset] for offset in (-1, 0, 1))
        bend = before - 2 * least + after
        vertex = (before - after) / (2 * bend) if bend > 0 else 0.0
    return USUAL_FACTOR * FACTOR_RATIO ** (best + vertex) * scale, solutions[best]


def fit(
    features: Tensor,
    labels: Tensor,
    l2: float | None = None,
    tolerance: float = 1e-3,
    max_iterations: int = 500,
) -> LinearClassifier:
    """The minimiser of  mean cross-entropy + l2/2 ‖weights‖²  on standardised features; the bias is free.

    An l2 of None is chosen by `choose_l2`; the tolerance is of the Newton decrement. scikit-learn's
    `LogisticRegression(C=1 / (l2 * N))` has the same objective.
    """
    check_pairs(features, labels)
    classes, targets = enumerate_labels(labels)  # (C,), (N,)
    centre, scale = moments(features)
    standard = (features.cpu().float() - centre) / scale  # (N, F)
    if tolerance < _FLOAT64_BELOW:
        standard = standard.double()
    start = None
    with torch.no_grad():
        problem = LogisticRegression.of(standard, targets, len(classes))
        if l2 is None:
            l2, start = choose_l2(problem)
        weights, bias = problem.classifier(problem.minimise(l2, tolerance, max_iterations, start))
    return LinearClassifier(weights, bias, centre, scale, classes)


def standard_error(accuracy: float, num_images: int) -> float:
    """Standard error of an accuracy in percent on so many test images, in points: √(a(100 - a)/n)."""
    if not 0 <= accuracy <= 100 or num_images < 1:
        raise ValueError(f"accuracy must be 0 … 100 on at least 1 image, got {accuracy} on {num_images}")
    return math.sqrt(accuracy * (100 - accuracy) / num_images)


def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    num_neighbours: int = 200,
    temperature: float = 0.07,
    chunk_size: int = 128,
) -> Tensor:
    """The label (M,) with the most votes; a neighbour at cosine similarity s votes with weight exp(s / temperature).

    Labels may be any integers. With fewer than `num_neighbours` training rows all of them vote; a draw of votes goes
    to the smallest label. Which of several neighbours at the same k-th similarity votes is not defined.
    """
    check_pairs(train_features, train_labels)
    if num_neighbours < 1 or temperature <= 0 or chunk_size < 1:
        raise ValueError("num_neighbours, temperature and chunk_size must be positive")
    classes, targets = torch.unique(train_labels.cpu(), return_inverse=True)  # (C,), (N,)
    bank = F.normalize(train_features.cpu().float(), dim=1)  # (N, F)
    queries = F.normalize(test_features.cpu().float(), dim=1)  # (M, F)
    num_neighbours = min(num_neighbours, len(bank))
    predicted = torch.empty(len(queries), dtype=torch.long)  # (M,)
    # One buffer for all chunks: new ones of this size, with small results between, would leave holes in the heap.
    buffer = bank.new_empty(min(chunk_size, len(queries)), len(bank))
    for start in range(0, len(queries), chunk_size):
        chunk = queries[start : start + chunk_size]
        similarities = torch.mm(chunk, bank.T, out=buffer[: len(chunk)])  # (m, N)
        similarity, neighbours = similarities.topk(num_neighbours, dim=1, sorted=False)  # (m, k), (m, k)
        # Measured from the nearest one, so that a small temperature can't overflow; a common factor changes no vote.
        weights = ((similarity - similarity.amax(dim=1, keepdim=True)) / temperature).exp()  # (m, k)
        votes = torch.zeros(len(chunk), len(classes)).scatter_add_(1, targets[neighbours], weights)  # (m, C)
        predicted[start : start + chunk_size] = votes.argmax(dim=1)
    winners: Tensor = classes[predicted]  # (M,)
    return winners


def fair_voters(num_rows: int, num_classes: int, most: int = 200) -> int:
    """As many as a class has images, up to the usual 200: of a small set nearly all images would vote on each."""
    return max(1, min(most, num_rows // num_classes))


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    num_neighbours: int = 200,
    temperature: float = 0.07,
) -> float:
    """Share of test rows whose label wins the vote, in percent."""
    check_pairs(test_features, test_labels)
    predicted = knn_predict(train_features, train_labels, test_features, num_neighbours, temperature)
    return 100.0 * float((predicted == test_labels.cpu()).double().mean())


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
        """Whether the linear accuracy is higher by more than two standard errors of the difference."""
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
