"""Multinomial logistic regression with an l2 penalty: value and gradient by hand, solved by preconditioned L-BFGS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_CHUNK = 2**17  # logits held at one time
_MOST_ROWS = 2**13  # whose products of directions are held at one time
_NUM_PAIRS = 20  # of steps and changes of the gradient that L-BFGS remembers
_REBUILD_EVERY = 20  # iterations
_BLOCK = 32  # directions in which a class has its full block

Solve = Callable[[Tensor], Tensor]  # (C, 1+F) -> (C, 1+F)


@dataclass(frozen=True)
class Solution:
    """Weights in principal directions, the bias in front, and the curvature that was met on the way there."""

    weights: Tensor  # (C, 1+F)
    l2: float
    steps: Tensor  # (m, C, 1+F): the last steps, the latest at the end
    changes: Tensor  # (m, C, 1+F): what each changed in the gradient

    def under(self, l2: float) -> "Solution":
        """The same with changes as they would be under another penalty, whose part of them is known."""
        changes = self.changes.clone()
        changes[:, :, 1:] += (l2 - self.l2) * self.steps[:, :, 1:]
        is_convex = (self.steps * changes).sum(dim=(1, 2)) > 0  # (m,)
        return replace(self, l2=l2, steps=self.steps[is_convex], changes=changes[is_convex])


@dataclass(frozen=True)
class LogisticRegression:
    """Minimise  mean cross-entropy + l2/2 ‖weights‖²  over N rows; the bias is free."""

    rows: Tensor  # (N, 1+F): ones, then the features in their principal directions, largest variance first
    targets: Tensor  # (N,) 0 … C-1
    num_classes: int
    directions: Tensor  # (F, F): features @ directions are the rows

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, num_classes: int) -> "LogisticRegression":
        """Take features (N, F) of mean zero, in the type that shall be computed in."""
        directions = _principal_directions(features)
        rows = torch.cat([features.new_ones(len(features), 1), features @ directions], dim=1)
        return cls(rows, targets, num_classes, directions)

    def subset(self, positions: Tensor) -> "LogisticRegression":
        """The same of some of the rows; directions stay, so that solutions can be exchanged."""
        return replace(self, rows=self.rows[positions], targets=self.targets[positions])

    def logits(self, solution: Solution) -> Tensor:
        """(N, C)."""
        return self.rows @ solution.weights.T

    def classifier(self, solution: Solution) -> tuple[Tensor, Tensor]:
        """Weights (C, F) of the features as they were given, and biases (C,), float32."""
        bias = solution.weights[:, 0]
        # Softmax can't tell biases that differ by a constant: those of mean zero stand for all.
        return (solution.weights[:, 1:] @ self.directions.T).float(), (bias - bias.mean()).float()

    def minimise(
        self, l2: float, tolerance: float, max_iterations: int = 500, start: Solution | None = None
    ) -> Solution:
        """L-BFGS from zero or another solution, until its Newton decrement √(gᵀH⁻¹g) is below the tolerance."""
        if l2 <= 0:
            raise ValueError(f"l2 must be positive, got {l2}: without it separable data have no minimiser")
        weights = self.rows.new_zeros(self.num_classes, self.rows.shape[1])  # (C, 1+F)
        now = Solution(weights, l2, weights[None][:0], weights[None][:0]) if start is None else start.under(l2)
        value, gradient = self.evaluate(now.weights, l2)
        for iteration in range(max_iterations):
            if iteration % _REBUILD_EVERY == 0:
                precondition = self.preconditioner(now.weights, l2)
            step = _newton_step(gradient, now, precondition)
            if _dot(step, gradient) <= tolerance**2 * min(1.0, value):
                break
            there, new_value, new_gradient = self._descend(now.weights, step, value, gradient, l2)
            if new_value is None:  # rounding hides any further fall
                break
            moved, change = there - now.weights, new_gradient - gradient
            if _dot(moved, change) > 0:
                steps, changes = (
                    torch.cat([old[1 - _NUM_PAIRS :], new[None]])
                    for old, new in ((now.steps, moved), (now.changes, change))
                )
                now = replace(now, steps=steps, changes=changes)
            now, value, gradient = replace(now, weights=there), new_value, new_gradient
        return now

    def _descend(
        self, weights: Tensor, step: Tensor, value: float, gradient: Tensor, l2: float
    ) -> tuple[Tensor, float | None, Tensor]:
        """Go back along the step until the objective falls enough (Armijo): weights, value or None, and gradient."""
        slope = _dot(step, gradient)
        slack = 10 * torch.finfo(weights.dtype).eps * abs(value)  # the value is only known to this precision
        length = 1.0
        while length > 1e-4:
            there = weights - length * step
            new_value, new_gradient = self.evaluate(there, l2)
            if new_value <= value - 1e-4 * length * slope + slack:
                return there, new_value, new_gradient
            rise = new_value - value + length * slope  # above the tangent
            length *= max(0.1, min(0.5, length * slope / (2 * rise)))  # to the vertex of the parabola
        return weights, None, gradient

    def evaluate(self, weights: Tensor, l2: float) -> tuple[float, Tensor]:
        """The objective and its gradient (C, 1+F)."""
        gradient = l2 * weights
        gradient[:, 0] = 0
        value = _dot(gradient, weights) / 2
        for rows, targets in self._chunks():
            log_share = torch.log_softmax(rows @ weights.T, dim=1)  # (n, C)
            value -= float(log_share.gather(1, targets).sum()) / len(self.rows)
            excess = log_share.exp_()
            excess.scatter_add_(1, targets, excess.new_full((1, 1), -1).expand_as(targets))  # softmax minus one-hot
            gradient.addmm_(excess.T, rows, alpha=1 / len(self.rows))
        return value, gradient

    def preconditioner(self, weights: Tensor, l2: float) -> Solve:
        """An inverse of the Hessian, class by class: exact in the first directions, of the others the diagonal."""
        size = min(1 + _BLOCK, weights.shape[1])
        first, second = torch.triu_indices(size, size)
        products = weights.new_zeros(len(weights), len(first))  # (C, pairs of directions)
        diagonal = weights.new_zeros(len(weights), weights.shape[1] - size)
        for rows, _ in self._chunks():
            share = torch.softmax(rows @ weights.T, dim=1)  # (n, C)
            spread = (share - share**2).T / len(self.rows)  # (C, n)
            front = rows[:, :size]
            pairs = torch.cat([front[:, i : i + 1] * front[:, i:] for i in range(size)], dim=1)  # (n, pairs)
            products.addmm_(spread, pairs)
            diagonal.addmm_(spread, rows[:, size:] ** 2)
        blocks = weights.new_zeros(len(weights), size, size)
        blocks[:, first, second] = products
        blocks[:, second, first] = products
        # The penalty also on the bias, which has none, and a share of the largest entry, lest Cholesky meet a zero.
        floor = l2 + 1e-6 * blocks.diagonal(dim1=1, dim2=2).amax(dim=1)  # (C,)
        blocks.diagonal(dim1=1, dim2=2).add_(floor[:, None])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(blocks))  # (C, size, size)
        diagonal = 1 / (diagonal + l2)

        def solve(vector: Tensor) -> Tensor:
            front = torch.bmm(inverse, vector[:, :size, None]).squeeze(2)
            return torch.cat([front, vector[:, size:] * diagonal], dim=1)

        return solve

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (n, 1+F) and their targets (n, 1), so many that few logits are held."""
        size = max(1, min(_MOST_ROWS, _CHUNK // self.num_classes))
        return zip(torch.split(self.rows, size), torch.split(self.targets[:, None], size), strict=True)


def _newton_step(gradient: Tensor, met: Solution, precondition: Solve) -> Tensor:
    """L-BFGS's approximation of H⁻¹g (Nocedal & Wright 2006, algorithm 7.4), both loops as triangular systems."""
    if not len(met.steps):
        return precondition(gradient)
    steps, changes = met.steps.flatten(1), met.changes.flatten(1)  # (m, C(1+F))
    products = torch.triu(steps @ changes.T).double()  # (m, m)
    curvatures = products.diagonal()[:, None]  # (m, 1)
    shares = torch.linalg.solve_triangular(products, (steps @ gradient.flatten())[:, None].double(), upper=True)
    vector = precondition(gradient - (shares.to(gradient)[:, 0] @ changes).view_as(gradient))
    # Blocks leave out that classes share rows, so the Hessian is up to twice theirs and the step can be too long.
    vector = vector * min(1.0, max(0.05, float(curvatures[-1]) / _dot(met.changes[-1], precondition(met.changes[-1]))))
    wanted = curvatures * shares - (changes @ vector.flatten())[:, None].double()
    back = torch.linalg.solve_triangular(products.T, wanted, upper=False)  # (m, 1)
    step: Tensor = vector + (back.to(gradient)[:, 0] @ steps).view_as(gradient)
    return step


def _dot(first: Tensor, second: Tensor) -> float:
    return float(torch.dot(first.reshape(-1), second.reshape(-1)))


def _principal_directions(features: Tensor) -> Tensor:
    """Principal directions of features (N, F) of mean zero: (F, F), largest variance first."""
    covariance = features.T @ features / len(features)
    try:
        vectors: Tensor = torch.linalg.eigh(covariance).eigenvectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Dead features leave many equal eigenvalues, among which divide and conquer may not converge, in float64 too.
        from scipy.linalg import eigh

        vectors = torch.from_numpy(eigh(covariance.double().numpy(), driver="ev")[1]).to(features.dtype)
    return vectors.flip(1)
