"""The solver's pieces: gradient and curvature against autograd, L-BFGS against its textbook loops."""

import pytest
import torch
from torch import Tensor

from ccl.evaluation import logistic_regression as module
from ccl.evaluation.logistic_regression import LogisticRegression, Solution, _newton_step


def problem(count: int = 60, dim: int = 6, num_classes: int = 4) -> LogisticRegression:
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(count, dim, generator=draws, dtype=torch.float64) * torch.arange(1, dim + 1)
    targets = torch.randint(0, num_classes, (count,), generator=draws)
    return LogisticRegression.of(features - features.mean(dim=0), targets, num_classes)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(of: LogisticRegression, weights: Tensor, l2: float) -> Tensor:
    loss = torch.nn.functional.cross_entropy(of.rows @ weights.T, of.targets)
    return loss + l2 / 2 * (weights[:, 1:] ** 2).sum()


def test_value_and_gradient_equal_autograd(monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7 * 4)  # several chunks and a rest
    of, weights = problem(), draw(4, 7).requires_grad_()
    expected = objective(of, weights, 0.3)
    (slope,) = torch.autograd.grad(expected, weights)
    value, gradient = of.evaluate(weights.detach(), 0.3)
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(gradient, slope)


@pytest.mark.parametrize("block", [32, 3])
def test_the_preconditioner_inverts_a_classs_own_curvature(monkeypatch, block) -> None:
    """Exactly in the block's directions and the bias; in the others the diagonal alone. All are penalised there."""
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_CHUNK", 7 * 4)
    of, weights, l2 = problem(), 0.3 * draw(4, 7), 0.3
    hessian = torch.autograd.functional.hessian(lambda point: objective(of, point, l2), weights)  # (4, 7, 4, 7)
    solve, wanted = of.preconditioner(weights, l2), draw(4, 7, seed=2)
    for number in range(4):
        own = hessian[number, :, number].clone()
        own[0, 0] += l2
        size = min(1 + block, 7)
        own[:size, size:] = own[size:, :size] = 0
        own[size:, size:] = torch.diag(own.diagonal()[size:])
        pushed = torch.zeros(4, 7, dtype=torch.float64)
        pushed[number] = own @ wanted[number]
        torch.testing.assert_close(solve(pushed)[number], wanted[number], rtol=1e-4, atol=1e-4)  # it adds 1e-6


def test_the_step_equals_the_textbooks_two_loops() -> None:
    of, l2 = problem(), 0.1
    points = [0.5 * draw(4, 7, seed=seed) for seed in range(6)]
    gradients = [of.evaluate(point, l2)[1] for point in points]
    steps, changes = torch.stack(points).diff(dim=0), torch.stack(gradients).diff(dim=0)  # (5, 4, 7)
    precondition = of.preconditioner(points[-1], l2)
    vector, shares = gradients[-1].clone(), []
    for step, change in reversed(list(zip(steps, changes, strict=True))):
        shares.append((step * vector).sum() / (step * change).sum())
        vector = vector - shares[-1] * change
    vector = precondition(vector)
    last, final = steps[-1], changes[-1]
    vector = vector * ((last * final).sum() / (final * precondition(final)).sum()).clamp(0.05, 1)
    for step, change, share in zip(steps, changes, reversed(shares), strict=True):
        vector = vector + step * (share - (change * vector).sum() / (step * change).sum())
    found = _newton_step(gradients[-1], Solution(points[-1], l2, steps, changes), precondition)
    torch.testing.assert_close(found, vector)


def test_changes_follow_the_penalty() -> None:
    of, here, there = problem(), draw(4, 7), draw(4, 7, seed=3)
    change = {l2: of.evaluate(there, l2)[1] - of.evaluate(here, l2)[1] for l2 in (0.1, 0.9)}
    met = Solution(there, 0.1, (there - here)[None], change[0.1][None]).under(0.9)
    torch.testing.assert_close(met.changes[0], change[0.9])
    assert met.l2 == 0.9
    # Less penalty than there ever was: nothing convex remains of this pair.
    assert len(Solution(there, 0.1, (there - here)[None], change[0.1][None]).under(-99.0).steps) == 0


def test_any_start_leads_to_the_same_minimum() -> None:
    of = problem(200, 8, 3)
    cold = of.minimise(0.02, 1e-9)
    strong = of.minimise(1.0, 1e-2)
    of_some = of.subset(torch.arange(0, 200, 2)).minimise(0.05, 1e-3)
    for start in (strong, of_some):
        warm = of.minimise(0.02, 1e-9, start=start)
        torch.testing.assert_close(warm.weights[:, 1:], cold.weights[:, 1:], atol=1e-7, rtol=0)
    assert torch.equal(of.minimise(0.02, 1e-9, start=cold).weights, cold.weights)


def test_without_a_penalty_it_is_refused() -> None:
    with pytest.raises(ValueError, match="l2 must be positive"):
        problem().minimise(0.0, 1e-3)


def test_where_torch_does_not_converge_the_directions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(matrix: Tensor) -> object:
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")

    features = draw(5, 8).float()  # fewer rows than features
    features -= features.mean(dim=0)
    monkeypatch.setattr(torch.linalg, "eigh", failing)
    of = LogisticRegression.of(features, torch.tensor([0, 1, 0, 1, 0]), 2)
    assert of.rows.dtype == of.directions.dtype == torch.float32
    torch.testing.assert_close(of.directions.T @ of.directions, torch.eye(8), atol=1e-5, rtol=0)
    variances = of.rows[:, 1:].square().mean(dim=0)
    assert (variances.diff() <= 1e-6).all()  # the largest first
    torch.testing.assert_close(of.rows[:, 1:] @ of.directions.T, features, atol=1e-5, rtol=0)
