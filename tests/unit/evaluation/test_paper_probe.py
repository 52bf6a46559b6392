"""The paper's probe: the update rule by hand, what it must not touch, and agreement with the cached one."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ccl import seeding
from ccl.data.image_sources import ArraySource
from ccl.evaluation import extract, fit, fit_paper


class Shaking:
    """Stands for `ccl.views.Viewer`: pixels plus noise that depends on the moment; remembers what was asked."""

    device = torch.device("cpu")

    def __init__(self, strength: float = 0.0) -> None:
        self.strength = strength
        self.orders: list[list[int]] = []

    def plain_batches(self, source, batch_size) -> Iterator[Tensor]:
        for positions in torch.arange(len(source)).split(batch_size):
            yield source.read(positions).float() / 255

    def batches(self, source, batches, *, moment, num_views):
        self.orders.append(torch.cat(list(batches)).tolist())
        for positions in batches:
            images = source.read(positions).float() / 255
            noise = torch.randn(images.shape, generator=seeding.generator(*moment, int(positions[0])))
            yield SimpleNamespace(positions=positions, views=(images + self.strength * noise,) * num_views)


class Net(nn.Module):
    """Frozen random features with a batch norm and a dropout that must stay in evaluation mode."""

    def __init__(self, pixels: int, dim: int) -> None:
        super().__init__()
        with seeding.seeded(0):
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(pixels, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Dropout()
            )
        self.num_features = dim

    def features(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(self.features(images), dim=1)


def small() -> tuple[ArraySource, Tensor]:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    images = torch.randint(0, 120, (30, 3, 2, 2), generator=draws)
    images[torch.arange(30), labels] += 80
    return ArraySource(images.to(torch.uint8), ids=torch.arange(30) * 7 + 3), labels


def by_hand(source, labels, net, epochs, rate, milestones, batch_size, seed) -> tuple[Tensor, Tensor]:
    """v ← 0.9 v + g, w ← w - rate v, with the gradient of the softmax written out."""
    net.eval()
    inputs_of_all = net.features(source.images.float() / 255).detach().double()
    weights = 0.01 * torch.randn(3, inputs_of_all.shape[1], generator=seeding.generator(seed, "linear probe weights"))
    weights, bias = weights.double(), torch.zeros(3, dtype=torch.float64)
    weights_speed, bias_speed = torch.zeros_like(weights), torch.zeros_like(bias)
    for epoch in range(epochs):
        now = rate * 0.1 ** sum(epoch >= milestone for milestone in milestones)
        order = seeding.permutation(source.ids, seed, "linear probe order", epoch)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            inputs = inputs_of_all[rows]
            error = ((inputs @ weights.T + bias).softmax(dim=1) - torch.eye(3)[labels[rows]]) / len(rows)
            weights_speed = 0.9 * weights_speed + error.T @ inputs
            bias_speed = 0.9 * bias_speed + error.sum(dim=0)
            weights, bias = weights - now * weights_speed, bias - now * bias_speed
    return weights.float(), bias.float()


def test_the_update_is_that_of_the_paper() -> None:
    source, labels = small()
    net = Net(12, 8)
    options = {"epochs": 5, "milestones": (2, 4), "batch_size": 8, "seed": 3}
    probe = fit_paper(net, source, labels * 10 - 5, Shaking(), learning_rate=0.5, **options)
    weights, bias = by_hand(source, labels, net, rate=0.5, **options)
    torch.testing.assert_close(probe.weights, weights, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(probe.bias, bias, atol=1e-5, rtol=1e-5)
    assert probe.classes.tolist() == [-5, 5, 15]
    assert torch.equal(probe.centre, torch.zeros(8))
    assert torch.equal(probe.scale, torch.ones(8))


def test_each_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    source, labels = small()
    first, again, other = Shaking(), Shaking(), Shaking()
    for viewer, seed in ((first, 0), (again, 0), (other, 1)):
        fit_paper(Net(12, 8), source, labels, viewer, epochs=3, batch_size=7, seed=seed)
    assert all(sorted(order) == list(range(30)) for order in first.orders)
    assert first.orders[0] != first.orders[1]
    assert first.orders == again.orders
    assert first.orders != other.orders


def test_the_encoder_is_left_as_it_was() -> None:
    source, labels = small()
    net = Net(12, 8).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first = fit_paper(net, source, labels, Shaking(0.1), epochs=2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(part.training for part in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())
    # Dropout was off and nothing depends on torch's global state: the same again, bit for bit.
    assert torch.equal(fit_paper(net, source, labels, Shaking(0.1), epochs=2).weights, first.weights)


def test_both_protocols_agree_on_digits() -> None:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images * 255 / 16).to(torch.uint8).reshape(-1, 1, 8, 8).repeat(1, 3, 1, 1)
    labels = torch.from_numpy(labels)
    train, test, net, viewer = ArraySource(pixels[:1200]), ArraySource(pixels[1200:]), Net(192, 256), Shaking(0.02)
    rows = extract(net, test, viewer)
    cached = fit(extract(net, train, viewer), labels[:1200]).accuracy(rows, labels[1200:])
    paper = fit_paper(net, train, labels[:1200], viewer, epochs=20, milestones=(12, 16))
    assert cached > 90
    assert paper.accuracy(rows, labels[1200:]) == pytest.approx(cached, abs=2.0)


def test_wrong_requests_are_refused() -> None:
    source, labels = small()
    with pytest.raises(ValueError, match="needs a label"):
        fit_paper(Net(12, 8), source, labels[:-1], Shaking())
