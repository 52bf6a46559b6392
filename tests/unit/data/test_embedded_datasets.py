"""The embedded sets: pure functions of the seed, balanced, not told apart by colour, but told apart by shape."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from ccl.data import EMBEDDED_DOMAINS, Dataset, domain_incremental, embedded_datasets, load_dataset
from ccl.data.embedded_datasets import TEXTURES, generate


@pytest.fixture(scope="module")
def domains() -> dict[str, Dataset]:
    return {name: generate(name, seed=0) for name in EMBEDDED_DOMAINS}


def _pixels(source: object) -> torch.Tensor:
    return source.images.float() / 255


@pytest.mark.parametrize("name", EMBEDDED_DOMAINS)
def test_parts_are_balanced_and_mixed(domains: dict[str, Dataset], name: str) -> None:
    dataset = domains[name]
    assert dataset.train.image_size == (24, 24)
    assert len(set(dataset.class_names)) == 10
    assert torch.bincount(dataset.train_labels).tolist() == [100] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [40] * 10
    assert len(set(dataset.train_labels[:20].tolist())) >= 5  # not class after class


@pytest.mark.parametrize("name", EMBEDDED_DOMAINS)
def test_no_test_image_stands_in_the_training_part(domains: dict[str, Dataset], name: str) -> None:
    train, test = _pixels(domains[name].train).flatten(1), _pixels(domains[name].test).flatten(1)
    root_mean_square = torch.cdist(test, train).min(dim=1).values / train.shape[1] ** 0.5
    assert root_mean_square.min() > 0.02


def _neighbour_accuracy(train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, truth: torch.Tensor) -> float:
    return float(KNeighborsClassifier(9).fit(train.numpy(), labels).score(test.numpy(), truth))


@pytest.mark.parametrize("name", EMBEDDED_DOMAINS)
def test_mean_colour_does_not_give_the_class_away_but_shape_does(domains: dict[str, Dataset], name: str) -> None:
    dataset = domains[name]
    train, test = _pixels(dataset.train), _pixels(dataset.test)
    labels, truth = dataset.train_labels, dataset.test_labels
    colour = train.mean(dim=(2, 3))  # (N, 3)
    assert _neighbour_accuracy(colour, labels, test.mean(dim=(2, 3)), truth) < 0.2  # chance: 0.1
    assert _neighbour_accuracy(colour[:500], labels[:500], colour[500:], labels[500:]) < 0.2

    def shape(images: torch.Tensor) -> torch.Tensor:
        grey = images.mean(dim=1).flatten(1)  # (N, H·W)
        return (grey - grey.mean(dim=1, keepdim=True)) / grey.std(dim=1, keepdim=True)

    assert _neighbour_accuracy(shape(train), labels, shape(test), truth) > 0.5


def test_domains_differ_in_kind(domains: dict[str, Dataset]) -> None:
    images = {name: _pixels(dataset.train) for name, dataset in domains.items()}
    assert torch.equal(images["digits"][:, 0], images["digits"][:, 2])  # grey
    border = {name: part[:, :, 0, :].mean().item() for name, part in images.items()}
    assert border["capitals"] < 0.3 < 0.6 < border["greek"]  # opposite polarity

    def roughness(part: torch.Tensor) -> float:
        """Differences between neighbours at the left border, where glyphs are rare."""
        return (part[:, :, 1:, 0] - part[:, :, :-1, 0]).abs().mean().item()

    assert roughness(images["symbols"]) > 2 * roughness(images["capitals"])  # noisy background


def test_stripes_run_as_their_names_say() -> None:
    rng = np.random.default_rng(0)
    upright, level = TEXTURES["upright stripes"](8, 48, rng), TEXTURES["level stripes"](8, 48, rng)
    for field, across in ((upright, 2), (level, 1)):
        changes = [np.abs(np.diff(field, axis=axis)).mean() for axis in (across, 3 - across)]
        assert changes[0] > 3 * changes[1]


@pytest.mark.parametrize("name", EMBEDDED_DOMAINS)
def test_images_are_a_pure_function_of_the_seed(domains: dict[str, Dataset], name: str) -> None:
    np.random.seed(5)  # global states must not matter
    torch.manual_seed(5)
    forget_drawn()
    again, other = generate(name, seed=0), generate(name, seed=1)
    assert torch.equal(_pixels(again.train), _pixels(domains[name].train))
    assert torch.equal(_pixels(again.test), _pixels(domains[name].test))
    assert not torch.equal(_pixels(other.train), _pixels(domains[name].train))


def forget_drawn() -> None:
    embedded_datasets._drawn.cache_clear()
    embedded_datasets._digits.cache_clear()


def test_what_is_drawn_once_is_not_shared(domains: dict[str, Dataset]) -> None:
    for name in ("digits", "greek"):
        first = generate(name, seed=0)
        first.train.images.zero_()  # type: ignore[attr-defined]
        assert torch.equal(_pixels(generate(name, seed=0).train), _pixels(domains[name].train))


def test_embedded_is_the_five_domains_joined(domains: dict[str, Dataset]) -> None:
    whole = load_dataset("embedded", seed=0)
    joined, steps = domain_incremental(list(domains.values()))
    assert torch.equal(_pixels(whole.train), _pixels(joined.train))
    assert whole.class_names == joined.class_names
    assert whole.class_names[13] == "capitals/G"
    assert [step.name for step in steps] == list(EMBEDDED_DOMAINS)
    assert whole.train_labels[steps[3].indices].unique().tolist() == list(range(30, 40))


@pytest.mark.parametrize("side", [8, 16, 32, 40])
def test_any_size_can_be_asked_for(side: int) -> None:
    assert load_dataset("greek", resize=side).train.image_size == (side, side)
