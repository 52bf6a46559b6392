"""The cost of a run: counts by hand, operations by the layers' own formula."""

import pytest

from ccl.loading import load_settings
from ccl.running.cost import ASSUMED_GPU_RATE, Cost, clock, estimate, forward_operations, in_words, step_sizes


def test_images_are_counted_with_the_memory_of_earlier_steps() -> None:
    settings = load_settings("cifar100", ["strategy=simple_rehearsal", "epochs=2"])
    sizes = step_sizes(settings)
    assert sizes == ([10_000] * 5, [20] * 5)
    # 20 classes a step, 20 images kept of each: 400 more in each step
    assert estimate(settings, *sizes).num_images == 2 * (5 * 10_000 + 400 * (0 + 1 + 2 + 3 + 4))
    plain = load_settings("cifar100", ["strategy=finetuning", "epochs=2"])
    assert estimate(plain, *sizes).num_images == 2 * 50_000
    at_once = load_settings("cifar100", ["strategy=upper_bound", "epochs=2"])
    assert estimate(at_once, *sizes).num_images == 2 * 50_000


def test_operations_follow_the_passes_of_each_strategy() -> None:
    def operations(*changes: str) -> float:
        settings = load_settings("cifar100-mini", ["epochs=1", "strategy=finetuning", *changes])
        return estimate(settings, [1000, 1000], [5, 5]).operations

    one = forward_operations(load_settings("cifar100-mini"))
    assert operations() == 2000 * 4 * one
    assert operations("objective=simclr") == 2000 * 6 * one
    assert operations("objective=insdisc") == 2000 * 3 * one
    assert operations("strategy=simple_rehearsal") == 2100 * 4 * one
    assert operations("strategy=ccl") == 2100 * 4 * one + 100 * 5 * one


def test_operations_of_a_resnet_are_those_of_its_layers() -> None:
    """The published count of ResNet-50 at 224 px is 4.1 billion multiply-adds; an operation here is one of the two."""
    from_paper = forward_operations(load_settings("imagenet-sub"))
    assert from_paper == pytest.approx(2 * 4.1e9, rel=0.02)


def test_sizes_are_known_by_name_or_counted() -> None:
    assert step_sizes(load_settings("cifar100-mini")) == ([2000] * 5, [4] * 5)
    assert sum(step_sizes(load_settings("imagenet-full"))[0]) == pytest.approx(1_281_167, rel=1e-4)
    few = ["dataset=digits,capitals", "batch_size=16", "data.images_per_class=7", "data.classes={digits: 3}"]
    counted = load_settings("demo", few)
    assert step_sizes(counted) == ([21, 70], [3, 10])


def test_the_words() -> None:
    costs = [Cost(3_000_000, ASSUMED_GPU_RATE * 3600)] * 2
    assert in_words(costs, None).startswith("2 runs, 6.0 million image passes, ")
    assert "about 2.0 hours on one GPU" in in_words(costs, None)
    assert "about 100 minutes" not in in_words(costs, 1000.0)
    assert "about 1.7 hours of training on one process here" in in_words(costs, 1000.0)
    assert [clock(value) for value in (45, 600, 7200, 864_000)] == [
        "45 seconds",
        "10 minutes",
        "2.0 hours",
        "10.0 days",
    ]
