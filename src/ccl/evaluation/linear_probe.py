"""A linear classifier on frozen features: what a representation is worth. Two protocols, named with each number.

`fit`, "cached": features of the plain images, read once; multinomial logistic regression solved to its optimum.
`fit_paper`, "paper" (in `paper_probe`): the paper's SGD, which reads every image again, augmented, in each epoch.
"""

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


def enumerate_labels(labels: Tensor, num_classes: int | None = None) -> tuple[Tensor, Tensor]:
    """The distinct labels (C,), ascending, and each row's place among them (N,); at most `num_classes` are allowed."""
    classes, targets = torch.unique(labels.cpu().long(), return_inverse=True)
    if num_classes is not None and len(classes) > num_classes:
        raise ValueError(f"labels hold {len(classes)} classes, more than num_classes = {num_classes}")
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

    Random encoders want a strong penalty and trained ones a weak one, several points apart, so no constant serves both.
    The search walks in factors of √10 until the least is inside, so that no end of a grid is ever chosen, and takes the
    vertex of the parabola through the least three over log l2, so that no place on a grid is worth anything. Where
    even the ends of `MOST_PLACES` fall, the end is taken: labels that are noise, or classes without any overlap. Only
    training rows are read. Too few rows to hold some out take the usual factor, and no start.
    """
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
    num_classes: int | None = None,
    l2: float | None = None,
    tolerance: float = 1e-3,
    max_iterations: int = 500,
) -> LinearClassifier:
    """The minimiser of  mean cross-entropy + l2/2 ‖weights‖²  on standardised features; the bias is free.

    An l2 of None is chosen by `choose_l2`. scikit-learn's `LogisticRegression(C=1 / (l2 * N))` has the same objective,
    and its accuracy is that of this function to 0.1 points; a smaller tolerance, of the Newton decrement, is nearer.
    """
    check_pairs(features, labels)
    classes, targets = enumerate_labels(labels, num_classes)  # (C,), (N,)
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
    """Of an accuracy in percent on so many test images, in points: √(a(100 - a)/n), what another draw would change.

    It holds nothing of what seeds, orders and initialisations change.
    """
    if not 0 <= accuracy <= 100 or num_images < 1:
        raise ValueError(f"accuracy must be 0 … 100 on at least 1 image, got {accuracy} on {num_images}")
    return math.sqrt(accuracy * (100 - accuracy) / num_images)
