"""The cached probe against scikit-learn, its optimality condition, and invariances."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from ccl.evaluation import fit, standard_error
from ccl.evaluation import logistic_regression as logistic_regression_module
from ccl.evaluation.logistic_regression import LogisticRegression as Problem
from ccl.evaluation.probes import FACTOR_RATIO, choose_l2, enumerate_labels, moments
from ccl.seeding import permutation


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)  # three of its 64 pixels are 0 throughout
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("l2", [6.4e-3, 1e-1])
def test_equals_scikit_learn_on_the_same_objective(l2) -> None:
    features, labels = digits()
    train, test = features[:1000], features[1000:]
    probe = fit(train, labels[:1000], l2=l2, tolerance=1e-7)
    spread = train.std(dim=0, correction=0)
    spread[spread == 0] = 1
    reference = LogisticRegression(C=1 / (l2 * 1000), tol=1e-8, max_iter=5000)
    reference.fit(((train - train.mean(dim=0)) / spread).double().numpy(), labels[:1000].numpy())
    np.testing.assert_allclose(probe.weights.numpy(), reference.coef_, atol=5e-4)
    # The bias isn't penalised, and the loss is nearly flat along it where classes are told apart with certainty.
    np.testing.assert_allclose(probe.bias.numpy(), reference.intercept_ - reference.intercept_.mean(), atol=1e-3)
    expected = reference.predict_proba(((test - train.mean(dim=0)) / spread).double().numpy())
    np.testing.assert_allclose(probe.logits(test).softmax(dim=1).numpy(), expected, atol=5e-4)
    assert probe.predict(test).tolist() == reference.predict(((test - train.mean(dim=0)) / spread).numpy()).tolist()


def correlated(count: int, dim: int, num_classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features as networks make them: a few directions carry nearly all variance, and all are positive."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (count,), generator=draws)
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(99)) / torch.arange(1, dim + 1)[:, None]
    means = 2 * torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(98))
    return ((torch.randn(count, dim, generator=draws) + means[labels]) @ mixing + 1).relu(), labels


def test_the_gradient_vanishes_at_the_answer() -> None:
    features, labels = correlated(600, 40, 7)
    probe = fit(features, labels, l2=1e-2, tolerance=1e-6)
    weights, bias = probe.weights.double().requires_grad_(), probe.bias.double().requires_grad_()
    inputs = ((features - probe.centre) / probe.scale).double()
    loss = torch.nn.functional.cross_entropy(inputs @ weights.T + bias, labels) + 0.005 * (weights**2).sum()
    gradients = torch.autograd.grad(loss, [weights, bias])
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-6


def test_rows_in_chunks_give_the_same_answer(monkeypatch) -> None:
    features, labels = correlated(500, 20, 5)
    # Solved to the end: short of it, another order of addition alone takes the solver along another path.
    whole = fit(features, labels, l2=1e-3, tolerance=1e-9)
    monkeypatch.setattr(logistic_regression_module, "_CHUNK", 64 * 5)  # 64 rows of 5 classes, and a rest
    torch.testing.assert_close(fit(features, labels, l2=1e-3, tolerance=1e-9).weights, whole.weights, atol=1e-5, rtol=0)


def test_scale_and_shift_of_the_features_change_nothing() -> None:
    features, labels = correlated(400, 16, 4)
    test, _ = correlated(200, 16, 4, seed=1)
    stretch, shift = torch.logspace(-3, 3, 16), torch.linspace(-5, 5, 16)
    plain, moved = (fit(rows, labels, tolerance=1e-6) for rows in (features, (features + shift) * stretch))
    expected = plain.logits(test).softmax(dim=1)
    torch.testing.assert_close(moved.logits((test + shift) * stretch).softmax(dim=1), expected, atol=2e-3, rtol=0)


def test_labels_may_be_any_integers() -> None:
    features, labels = correlated(300, 16, 3)
    names = torch.tensor([-4, 17, 90])
    probe = fit(features, names[labels])
    assert probe.classes.tolist() == [-4, 17, 90]
    assert torch.equal(probe.predict(features), names[fit(features, labels).predict(features)])
    assert probe.accuracy(features, names[labels]) > 60


def test_accuracy_is_in_percent_and_an_unseen_label_is_an_error() -> None:
    probe = fit(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    assert probe.accuracy(torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([0, 1, 0, 5])) == 50.0


def test_constant_features_do_no_harm() -> None:
    features, labels = correlated(300, 16, 3)
    constant = torch.full((300, 2), 0.1)
    wide = torch.cat([features, constant], dim=1)
    plain, padded = (fit(rows, labels, l2=1e-2, tolerance=1e-6) for rows in (features, wide))
    torch.testing.assert_close(padded.weights[:, :16], plain.weights, atol=1e-5, rtol=0)
    assert padded.weights[:, 16:].abs().max() < 1e-4


def test_one_class_and_one_image_are_fine() -> None:
    probe = fit(torch.tensor([[1.0, 2.0]]), torch.tensor([3]))
    assert probe.predict(torch.randn(4, 2)).tolist() == [3, 3, 3, 3]


def as_problem(features: torch.Tensor, labels: torch.Tensor) -> Problem:
    centre, scale = moments(features)
    classes, targets = enumerate_labels(labels)
    return Problem.of((features - centre) / scale, targets, len(classes))


def chosen_factor(features: torch.Tensor, labels: torch.Tensor) -> float:
    return choose_l2(as_problem(features, labels))[0] * len(features) / features.shape[1]


def held_out_loss(features: torch.Tensor, labels: torch.Tensor, factor: float) -> float:
    """By scikit-learn, on the fifth that the search holds out."""
    centre, scale = moments(features)
    rows, targets = ((features - centre) / scale).double().numpy(), labels.numpy()
    order = permutation(torch.arange(len(rows)), "held out for l2").numpy()
    held_out, rest = order[: len(rows) // 5], order[len(rows) // 5 :]
    # Of two classes it fits one vector, the difference of ours, whose penalty is twice as large.
    strength = factor * rows.shape[1] / (2 if targets.max() == 1 else 1)
    reference = LogisticRegression(C=1 / strength, tol=1e-6, max_iter=3000).fit(rows[rest], targets[rest])
    shares = reference.predict_proba(rows[held_out])[np.arange(len(held_out)), targets[held_out]]
    return float(-np.log(shares).mean())


def blurred(count: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels that hardly depend on the rows want a strong penalty."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 60, generator=draw)
    return rows, ((rows[:, 0] + 3 * torch.randn(count, generator=draw)) > 0).long()


def sharp(count: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """A fine border with few mistakes wants a weak one."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 20, generator=draw)
    return rows, (rows @ torch.linspace(-1, 1, 20) + 0.1 * torch.randn(count, generator=draw) > 0).long()


@pytest.mark.parametrize(
    ("data", "least", "most", "apart"), [(blurred, 0.5, 99, 0.2), (sharp, 2e-6, 0.01, 0.2), (digits, 2e-6, 99, 0.3)]
)
def test_the_chosen_penalty_is_where_scikit_learn_has_the_least_held_out_loss(data, least, most, apart) -> None:
    """Within a place of the search, never at its end, and hardly worse than the best of a fine grid."""
    features, labels = (part[:900] for part in data())
    factor = chosen_factor(features, labels)
    assert least < factor < most
    grid = [factor * FACTOR_RATIO ** (place / 2) for place in range(-5, 6)]
    losses = [held_out_loss(features, labels, value) for value in grid]
    assert losses[5] < 1.005 * min(losses)
    before, least, after = losses[4:7]
    assert abs(before - after) / (2 * (before - 2 * least + after)) < apart  # half places from the vertex; 0.2 are 12 %
    assert min(losses[0], losses[-1]) > 1.02 * min(losses)  # so a wrong place would show


def test_noise_ends_at_the_strongest_and_gaps_at_the_weakest_penalty() -> None:
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 50, generator=draw)
    assert chosen_factor(rows, torch.randint(0, 2, (200,), generator=draw)) == pytest.approx(100)
    labels = torch.arange(200) % 2
    apart = 0.01 * rows[:, :2] + labels[:, None]
    assert chosen_factor(apart, labels) < 1e-4


def test_few_rows_take_the_usual_penalty() -> None:
    assert chosen_factor(torch.randn(8, 5), torch.tensor([0, 1] * 4)) == pytest.approx(0.1)


def test_the_standard_error_is_the_binomial_distributions() -> None:
    """By the definition: the deviation of the accuracy over all outcomes of 7 images, 30 % right each."""
    outcomes = [(math.comb(7, right) * 0.3**right * 0.7 ** (7 - right), 100 * right / 7) for right in range(8)]
    spread = math.sqrt(sum(chance * (accuracy - 30) ** 2 for chance, accuracy in outcomes))
    assert standard_error(30.0, 7) == pytest.approx(spread)
    assert standard_error(50.0, 10_000) == pytest.approx(0.5)
    assert standard_error(100.0, 10) == standard_error(0.0, 10) == 0.0
    for accuracy, count in ((-1.0, 10), (101.0, 10), (50.0, 0), (math.nan, 10)):
        with pytest.raises(ValueError, match="0 … 100"):
            standard_error(accuracy, count)


def test_is_deterministic_and_works_without_gradients() -> None:
    features, labels = correlated(300, 16, 3)
    first = fit(features, labels)
    with torch.no_grad():
        second = fit(features, labels)
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.bias, second.bias)


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"\(N, F\)"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "at least one"),
        (torch.zeros(2, 2), torch.zeros(2), "integers"),
        (torch.full((2, 2), torch.nan), torch.arange(2), "nan"),
    ],
)
def test_what_cannot_be_fitted_is_refused(features, labels, words) -> None:
    with pytest.raises(ValueError, match=words):
        fit(features, labels)
