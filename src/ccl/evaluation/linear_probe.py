"""A linear classifier on frozen features: what a representation is worth. Two protocols, named with each number.

`fit`, "cached": features of the plain images, read once; multinomial logistic regression solved to its optimum.
`fit_paper`, "paper" (in `paper_probe`): the paper's SGD, which reads every image again, augmented, in each epoch.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.seeding import permutation

CACHED_PROTOCOL = "linear, cached: plain images' features, standardised, logistic regression, l2 by a held-out fifth"
L2_FACTORS = (0.3, 0.1, 0.03, 0.01, 0.003)  # times F/N; from strong to weak, so that each solution starts the next
_CHUNK = 2**18  # logits held at one time


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


def choose_l2(standard: Tensor, targets: Tensor, num_classes: int) -> float:
    """The strength among `L2_FACTORS` · F/N that is best on a fifth of the rows when the others are fitted.

    Random encoders want a strong prior and trained ones a weak one, several points apart, so no constant serves both.
    Only training rows are read. Too few rows to hold some out take the middle of the usual, 0.1 F/N.
    """
    num_rows, num_features = standard.shape
    if num_rows < 5 * num_classes:
        return 0.1 * num_features / num_rows
    order = permutation(torch.arange(num_rows), "held out for l2")
    held_out, rest = order[: num_rows // 5], order[num_rows // 5 :]
    solution: tuple[Tensor, Tensor] | None = None
    best, lowest = 0.0, math.inf
    for factor in L2_FACTORS:
        l2 = factor * num_features / len(rest)
        # A rough solution suffices to compare.
        solution = _minimise(standard[rest], targets[rest], num_classes, l2, 1e-3, 200, solution)
        logits = standard[held_out] @ solution[0].T + solution[1]
        loss = float(F.cross_entropy(logits, targets[held_out]))  # smoother than accuracy on few rows
        if loss < lowest:
            best, lowest = factor, loss
    return best * num_features / num_rows


def fit(
    features: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    l2: float | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 500,
) -> LinearClassifier:
    """The minimiser of  mean cross-entropy + l2/2 ‖weights‖²  on standardised features; the bias is free.

    An l2 of None is chosen by `choose_l2`. scikit-learn's `LogisticRegression(C=1 / (l2 * N))` has the same objective.
    """
    check_pairs(features, labels)
    classes, targets = enumerate_labels(labels, num_classes)  # (C,), (N,)
    centre, scale = moments(features)
    standard = (features.cpu().float() - centre) / scale  # (N, F)
    l2 = choose_l2(standard, targets, len(classes)) if l2 is None else l2
    weights, bias = _minimise(standard, targets, len(classes), l2, tolerance, max_iterations)
    return LinearClassifier(weights, bias, centre, scale, classes)


def _minimise(
    inputs: Tensor,
    targets: Tensor,
    num_classes: int,
    l2: float,
    tolerance: float,
    max_iterations: int,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """L-BFGS from zero or another solution, in coordinates where Böhning's bound on the Hessian is the identity.

    The bound is covariance/2 + l2. On four sets of convnet features it took about half the evaluations of plain L-BFGS
    at the same tolerance (of the gradient in these coordinates); on well separated classes two to four times as many.
    """
    if l2 <= 0:
        raise ValueError(f"l2 must be positive, got {l2}: without it separable data have no minimiser")
    rows = inputs.double()
    covariance = rows.T @ rows / len(rows)  # (F, F)
    variances, directions = torch.linalg.eigh(covariance)  # (F,), (F, F)
    stretch = (variances.clamp(min=0) / 2 + l2).rsqrt()  # (F,)
    change = directions * stretch  # (F, F)
    rows = rows @ change  # (N, F), from here on in the new coordinates
    ridge = l2 * stretch**2  # (F,)
    weights, bias = rows.new_zeros(num_classes, rows.shape[1]), rows.new_zeros(num_classes)  # (C, F), (C,)
    if start is not None:
        weights, bias = (start[0].double() @ directions) / stretch, start[1].double()
    weights.requires_grad_(), bias.requires_grad_()
    solver = torch.optim.LBFGS(
        [weights, bias],
        max_iter=max_iterations,
        tolerance_grad=tolerance,
        tolerance_change=0.0,  # the gradient alone says when it is done; torch's 1e-9 stops short of it
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    size = max(1, _CHUNK // num_classes)

    def objective() -> float:
        solver.zero_grad()
        total = 0.0
        for some, wanted in zip(torch.split(rows, size), torch.split(targets, size), strict=True):
            loss = F.cross_entropy(some @ weights.T + bias, wanted, reduction="sum") / len(rows)
            loss = loss + (ridge * weights**2).sum() / 2 * (len(some) / len(rows))
            loss.backward()
            total += loss.item()
        return total

    with torch.enable_grad():
        solver.step(objective)  # type: ignore[no-untyped-call]
    # Softmax can't tell biases that differ by a constant: those of mean zero stand for all.
    return (weights.detach() @ change.T).float(), (bias.detach() - bias.detach().mean()).float()
