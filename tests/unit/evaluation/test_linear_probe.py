"""The cached probe against scikit-learn, its optimality condition, and invariances."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from ccl.evaluation import fit
from ccl.evaluation import linear_probe as linear_probe_module
from ccl.evaluation.linear_probe import L2_FACTORS, choose_l2, enumerate_labels, moments


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)  # three of its 64 pixels are 0 throughout
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("l2", [6.4e-3, 1e-1])
def test_equals_scikit_learn_on_the_same_objective(l2) -> None:
    features, labels = digits()
    train, test = features[:1000], features[1000:]
    probe = fit(train, labels[:1000], 10, l2=l2, tolerance=1e-7)
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
    probe = fit(features, labels, l2=1e-2)
    weights, bias = probe.weights.double().requires_grad_(), probe.bias.double().requires_grad_()
    inputs = ((features - probe.centre) / probe.scale).double()
    loss = torch.nn.functional.cross_entropy(inputs @ weights.T + bias, labels) + 0.005 * (weights**2).sum()
    gradients = torch.autograd.grad(loss, [weights, bias])
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-4


def test_rows_in_chunks_give_the_same_answer(monkeypatch) -> None:
    features, labels = correlated(500, 20, 5)
    # Solved to the end: short of it, another order of addition alone takes the solver along another path.
    whole = fit(features, labels, l2=1e-3, tolerance=1e-9)
    monkeypatch.setattr(linear_probe_module, "_CHUNK", 64 * 5)  # 64 rows of 5 classes, and a rest
    torch.testing.assert_close(fit(features, labels, l2=1e-3, tolerance=1e-9).weights, whole.weights, atol=1e-5, rtol=0)


def test_scale_and_shift_of_the_features_change_nothing() -> None:
    features, labels = correlated(400, 16, 4)
    test, _ = correlated(200, 16, 4, seed=1)
    stretch, shift = torch.logspace(-3, 3, 16), torch.linspace(-5, 5, 16)
    plain, moved = fit(features, labels), fit(features * stretch + shift * stretch, labels)
    expected = plain.logits(test).softmax(dim=1)
    torch.testing.assert_close(moved.logits((test + shift) * stretch).softmax(dim=1), expected, atol=2e-3, rtol=0)


def test_labels_may_be_any_integers() -> None:
    features, labels = correlated(300, 16, 3)
    names = torch.tensor([-4, 17, 90])
    probe = fit(features, names[labels], num_classes=3)
    assert probe.classes.tolist() == [-4, 17, 90]
    assert torch.equal(probe.predict(features), names[fit(features, labels).predict(features)])
    assert probe.accuracy(features, names[labels]) > 60


def test_accuracy_is_in_percent_and_an_unseen_label_is_an_error() -> None:
    probe = fit(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    assert probe.accuracy(torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([0, 1, 0, 5])) == 50.0


def test_constant_features_do_no_harm() -> None:
    features, labels = correlated(300, 16, 3)
    constant = torch.full((300, 2), 0.1)
    plain, padded = fit(features, labels, l2=1e-2), fit(torch.cat([features, constant], dim=1), labels, l2=1e-2)
    torch.testing.assert_close(padded.weights[:, :16], plain.weights, atol=2e-3, rtol=0)
    assert padded.weights[:, 16:].abs().max() < 1e-4


def test_one_class_and_one_image_are_fine() -> None:
    probe = fit(torch.tensor([[1.0, 2.0]]), torch.tensor([3]))
    assert probe.predict(torch.randn(4, 2)).tolist() == [3, 3, 3, 3]


def chosen_factor(features: torch.Tensor, labels: torch.Tensor) -> float:
    centre, scale = moments(features)
    classes, targets = enumerate_labels(labels)
    l2 = choose_l2((features - centre) / scale, targets, len(classes))
    return l2 * len(features) / features.shape[1]


def test_noise_gets_a_strong_penalty_and_separable_rows_a_weak_one() -> None:
    """Labels that hardly depend on the rows want the strongest prior; a fine, deterministic border the weakest."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 60, generator=draw)
    blurred = ((rows[:, 0] + 6 * torch.randn(600, generator=draw)) > 0).long()
    border = (rows @ torch.linspace(-1, 1, 60) > 0).long()
    assert chosen_factor(rows, blurred) == pytest.approx(max(L2_FACTORS))
    assert chosen_factor(rows, border) <= 0.03 + 1e-6


@pytest.mark.slow
def test_a_rough_solution_chooses_as_a_fine_one_would() -> None:
    features, labels = digits()
    centre, scale = moments(features[:900])
    standard, targets = (features[:900] - centre) / scale, labels[:900]
    order = linear_probe_module.permutation(torch.arange(900), "held out for l2")
    held_out, rest = order[:180], order[180:]
    losses = []
    for factor in L2_FACTORS:
        weights, bias = linear_probe_module._minimise(standard[rest], targets[rest], 10, factor * 64 / 720, 1e-7, 2000)
        losses.append(
            float(torch.nn.functional.cross_entropy(standard[held_out] @ weights.T + bias, targets[held_out]))
        )
    chosen = chosen_factor(features[:900], labels[:900])
    (number,) = [number for number, factor in enumerate(L2_FACTORS) if factor == pytest.approx(chosen)]
    assert losses[number] < 1.05 * min(losses)
    assert max(losses) > 1.5 * min(losses)


def test_few_rows_take_the_usual_penalty() -> None:
    assert chosen_factor(torch.randn(8, 5), torch.tensor([0, 1] * 4)) == pytest.approx(0.1)


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
        (torch.zeros(3, 2), torch.arange(3), "num_classes"),
    ],
)
def test_what_cannot_be_fitted_is_refused(features, labels, words) -> None:
    with pytest.raises(ValueError, match=words):
        fit(features, labels, num_classes=2)
