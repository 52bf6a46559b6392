"""The cached probe's accuracy against scikit-learn's optimum of the same objective, on the sets it is used on."""

from collections.abc import Iterator

import pytest
import torch
from networks import make_encoder
from real_data import root_with
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from ccl.data import Dataset, load_dataset
from ccl.encoders import Encoder
from ccl.evaluation import extract, fit
from ccl.evaluation.logistic_regression import LogisticRegression as Problem
from ccl.evaluation.probes import choose_l2, enumerate_labels, moments

EMBEDDED = ["textures", "symbols", "capitals", "greek", "digits"]


class PlainPixels:
    def plain_batches(self, source, batch_size):
        for positions in torch.arange(len(source)).split(batch_size):
            yield source.read(positions).float() / 127.5 - 1


def encoders(dataset: Dataset) -> Iterator[tuple[str, Encoder]]:
    """A ConvNet as initialised, and the same after some updates that tell classes apart, as a good encoder does."""
    encoder = make_encoder("convnet", width=16, seed=0)
    yield "random", encoder
    classes, targets = enumerate_labels(dataset.train_labels)
    head = nn.Linear(encoder.num_features, len(classes))
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD([*encoder.backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    draws = torch.Generator().manual_seed(0)
    for _ in range(60 if len(targets) < 5000 else 300):
        positions = torch.randint(0, len(targets), (64,), generator=draws)
        images = dataset.train.read(positions).float() / 127.5 - 1
        loss = nn.functional.cross_entropy(head(encoder.features(images)), targets[positions])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    yield "trained", encoder


def by_scikit_learn(features: Tensor, labels: Tensor, tested: Tensor, wanted: Tensor) -> float:
    """Accuracy in percent at the optimum, with the penalty that the probe chooses."""
    centre, scale = moments(features)
    _, targets = enumerate_labels(labels)
    rows, seen = (((part - centre) / scale) for part in (features, tested))
    l2, _ = choose_l2(Problem.of(rows, targets, int(targets.max()) + 1))
    reference = LogisticRegression(C=1 / (l2 * len(rows)), tol=1e-6, max_iter=20_000)
    reference.fit(rows.double().numpy(), labels.numpy())
    return 100 * reference.score(seen.double().numpy(), wanted.numpy())


def agree(dataset: Dataset) -> None:
    accuracies = []
    for name, encoder in encoders(dataset):
        rows, tested = (extract(encoder, part, PlainPixels()) for part in (dataset.train, dataset.test))
        found = fit(rows, dataset.train_labels).accuracy(tested, dataset.test_labels)
        expected = by_scikit_learn(rows, dataset.train_labels, tested, dataset.test_labels)
        # 0.1 points; of fewer than 1,000 images one is more, and one or two may lie on the border of two classes:
        # solutions at a tenth of the tolerance differ in these too.
        assert abs(found - expected) <= max(0.1, 200 / len(tested)) + 1e-9, f"{name}: {found} against {expected}"
        accuracies.append(found)
    assert accuracies[1] > accuracies[0]  # or the second encoder would be no other case


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_sets(name) -> None:
    agree(load_dataset(name, resize=16, images_per_class=60))


@pytest.mark.slow
@pytest.mark.needs_data
def test_cifar100() -> None:
    agree(load_dataset("cifar100", root_with("cifar-100-python"), resize=16, images_per_class=80))
