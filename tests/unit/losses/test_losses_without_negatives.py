"""Cosine and squared distances, Barlow Twins and VICReg; against loops, closed forms, symmetries and slopes."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ccl.losses import barlow_twins, cosine_distance, feature_distance, vicreg

LOSSES = [cosine_distance, feature_distance, barlow_twins, vicreg]


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(size: int) -> Tensor:
    return torch.linalg.qr(rows(size, size, seed=9)).Q


# --- All of them


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_one_float32_whatever_comes_in(loss: Callable[..., Tensor]) -> None:
    value = loss(rows(4, 6).to(torch.bfloat16), rows(4, 6, seed=1).to(torch.bfloat16))
    assert (value.dtype, value.shape) == (torch.float32, ())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_order_of_the_rows_does_not_matter(loss: Callable[..., Tensor]) -> None:
    first, second, order = rows(5, 6), rows(5, 6, seed=1), torch.tensor([3, 0, 4, 2, 1])
    value = float(loss(first, second))
    assert float(loss(first[order], second[order])) == pytest.approx(value, rel=1e-5)
    assert float(loss(first[order], second)) != pytest.approx(value, rel=1e-3)  # but which row has which partner does


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_the_slope(loss: Callable[..., Tensor]) -> None:
    # Differences of a float32 loss: wide steps, wide tolerance. VICReg's hinges are away from their corner here.
    first, second = (0.5 * rows(5, 3)).requires_grad_(), 0.5 * rows(5, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: loss(x, second), (first,), eps=1e-3, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize(("loss", "is_target"), [*zip(LOSSES, [True, True, False, False], strict=True)])
def test_a_target_has_no_gradient_and_a_second_view_has_one(loss: Callable[..., Tensor], is_target: bool) -> None:
    first, second = rows(4, 3).requires_grad_(), rows(4, 3, seed=1).requires_grad_()
    loss(first, second).backward()
    assert first.grad.abs().sum() > 0
    assert (second.grad is None) == is_target


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("num", [1, 4])
def test_collapsed_rows_have_a_finite_loss_and_gradient(loss: Callable[..., Tensor], num: int) -> None:
    same = torch.zeros(num, 3, requires_grad=True)
    value = loss(same, torch.ones(num, 3))
    value.backward()
    assert same.grad is not None
    assert torch.isfinite(value)
    assert torch.isfinite(same.grad).all()


# --- Cosine distance


def test_cosine_distance_is_byol_s_equation() -> None:
    prediction, target = rows(5, 4), rows(5, 4, seed=1)
    total = 0.0
    for p, t in zip(prediction.tolist(), target.tolist(), strict=True):
        length_p, length_t = math.hypot(*p), math.hypot(*t)
        total += sum((a / length_p - b / length_t) ** 2 for a, b in zip(p, t, strict=True))  # ‖p̄ − t̄‖²
    assert float(cosine_distance(prediction, target)) == pytest.approx(total / 5, rel=1e-5)


def test_cosine_distance_has_its_closed_forms() -> None:
    prediction = rows(3, 4)
    assert float(cosine_distance(prediction, 7 * prediction)) == pytest.approx(0, abs=1e-6)  # lengths do not matter
    assert float(cosine_distance(prediction, -prediction)) == pytest.approx(4)
    assert float(cosine_distance(torch.tensor([[1.0, 0]]), torch.tensor([[0, 5.0]]))) == pytest.approx(2)


# --- Feature distance


def test_feature_distance_is_the_mean_square() -> None:
    features, stored = rows(3, 4), rows(3, 4, seed=1)
    squares = [(a - b) ** 2 for a, b in zip(features.flatten().tolist(), stored.flatten().tolist(), strict=True)]
    assert float(feature_distance(features, stored)) == pytest.approx(sum(squares) / 12, rel=1e-5)
    assert float(feature_distance(features, features)) == 0
    assert float(feature_distance(torch.full((1, 5), 2.0), torch.full((1, 5), -1.0))) == pytest.approx(9)


# --- Barlow Twins


def barlow_by_hand(first: Tensor, second: Tensor, off_diagonal: float, scale: float) -> float:
    def column(view: Tensor, d: int) -> list[float]:
        values = view[:, d].tolist()
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        return [(value - mean) / math.sqrt(variance + 1e-5) for value in values]

    total, num, dim = 0.0, *first.shape
    for i in range(dim):
        for j in range(dim):
            correlation = sum(a * b for a, b in zip(column(first, i), column(second, j), strict=True)) / num
            total += (correlation - 1) ** 2 if i == j else off_diagonal * correlation**2
    return scale * total


@pytest.mark.parametrize(("off_diagonal", "scale"), [(5e-3, 0.1), (0.3, 2.0)])
def test_barlow_twins_is_its_equation(off_diagonal: float, scale: float) -> None:
    first, second = 3 * rows(6, 4) + 1, rows(6, 4, seed=1)
    expected = barlow_by_hand(first, second, off_diagonal, scale)
    assert float(barlow_twins(first, second, off_diagonal, scale)) == pytest.approx(expected, rel=1e-5)
    assert float(barlow_twins(first, second)) == pytest.approx(barlow_by_hand(first, second, 5e-3, 0.1), rel=1e-5)


def test_barlow_twins_has_its_closed_forms() -> None:
    # Columns of a Hadamard matrix: mean 0, variance 1, no correlation.
    signs = torch.tensor([[1.0, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]])
    assert float(barlow_twins(signs, signs)) == pytest.approx(0, abs=1e-6)
    assert float(barlow_twins(signs, -signs, scale=1.0)) == pytest.approx(3 * 4, rel=1e-4)  # (−1 − 1)² each
    same = torch.ones(5, 3)  # no variance: the correlation is 0
    assert float(barlow_twins(same, same, scale=1.0)) == pytest.approx(3)
    assert float(barlow_twins(torch.ones(1, 3), torch.zeros(1, 3), scale=1.0)) == pytest.approx(3)
    equal = torch.tensor([1.0, -1, 1, -1]).repeat(3, 1).T  # all dimensions alike: 1 everywhere
    assert float(barlow_twins(equal, equal, 0.5, 1.0)) == pytest.approx(0.5 * 6, rel=1e-4)


def test_barlow_twins_ignores_scale_shift_and_the_order_of_views() -> None:
    first, second = rows(8, 4), rows(8, 4, seed=1)
    value = float(barlow_twins(first, second))
    assert float(barlow_twins(second, first)) == pytest.approx(value, rel=1e-5)
    stretched = first * torch.tensor([2.0, 5.0, 3.0, 9.0]) + 4
    assert float(barlow_twins(stretched, second)) == pytest.approx(value, rel=1e-4)


# --- VICReg


def vicreg_by_hand(first: Tensor, second: Tensor, invariance: float, variance: float, covariance: float) -> float:
    total = invariance * float(np.mean((first.numpy() - second.numpy()) ** 2))
    num, dim = first.shape
    for view in (first.tolist(), second.tolist()):
        means = [sum(row[d] for row in view) / num for d in range(dim)]
        for i in range(dim):
            for j in range(dim):
                together = sum((row[i] - means[i]) * (row[j] - means[j]) for row in view) / (num - 1)
                if i == j:
                    total += variance * max(0.0, 1 - math.sqrt(together + 1e-4)) / dim
                else:
                    total += covariance * together**2 / dim
    return total


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (3.0, 0.5, 2.0)])
def test_vicreg_is_its_equations(weights: tuple[float, float, float]) -> None:
    first, second = rows(6, 4) * torch.tensor([0.2, 0.9, 2.0, 0.5]) + 1, 0.7 * rows(6, 4, seed=1)  # hinges on and off
    assert float(vicreg(first, second, *weights)) == pytest.approx(vicreg_by_hand(first, second, *weights), rel=1e-5)
    assert float(vicreg(first, second)) == pytest.approx(vicreg_by_hand(first, second, 25, 25, 1), rel=1e-5)


def test_vicreg_has_its_closed_forms() -> None:
    signs = 2 * torch.tensor(
        [[1.0, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]]
    )  # varies by more than 1, uncorrelated
    assert float(vicreg(signs, signs)) == pytest.approx(0, abs=1e-6)
    same = torch.ones(5, 3)
    assert float(vicreg(same, same)) == pytest.approx(25 * 2 * (1 - 0.01))  # both hinges, √1e-4 = 0.01
    assert float(vicreg(torch.ones(1, 3), torch.zeros(1, 3))) == pytest.approx(25 + 25 * 2 * 0.99)


def test_vicreg_is_symmetric_and_its_covariance_is_not_moved_by_a_shift() -> None:
    first, second = rows(6, 4), rows(6, 4, seed=1)
    assert torch.allclose(vicreg(first, second), vicreg(second, first))
    parts = (0.0, 1.0, 1.0)
    assert torch.allclose(vicreg(first, second, *parts), vicreg(first + 3, second - 1, *parts), rtol=1e-4)
    turned = rotation(4)  # the invariance does not mind a rotation, the dimensions do
    only = (1.0, 0.0, 0.0)
    assert torch.allclose(vicreg(first, second, *only), vicreg(first @ turned, second @ turned, *only), rtol=1e-4)
    assert not torch.allclose(vicreg(first, second, *parts), vicreg(first @ turned, second @ turned, *parts), rtol=1e-2)


# --- As lightly has them, where it is installed


def test_losses_are_lightly_s() -> None:
    lightly = pytest.importorskip("lightly.loss")
    first = rows(2000, 4).float()
    second = first + 0.7 * rows(2000, 4, seed=1).float()
    expected = lightly.NegativeCosineSimilarity()(first, second)
    assert float(cosine_distance(first, second)) / 2 - 1 == pytest.approx(float(expected), rel=1e-5)
    # Some versions divide by N − 1 where batch norm divides by N.
    expected = lightly.BarlowTwinsLoss(lambda_param=5e-3)(first, second)
    assert float(barlow_twins(first, second, 5e-3, scale=1.0)) == pytest.approx(float(expected), rel=1e-2)
    # It halves the sum of the two hinges, as the authors' code does.
    expected = lightly.VICRegLoss(25.0, 25.0, 1.0)(0.5 * first, 0.5 * second)
    assert float(vicreg(0.5 * first, 0.5 * second, 25.0, 12.5, 1.0)) == pytest.approx(float(expected), rel=1e-4)
