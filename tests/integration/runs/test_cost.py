"""The cost of a run: counts by hand, operations by the layers' own formula."""

from functools import partial

import pytest

from ccl.catalogue import OBJECTIVES
from ccl.loading import load_settings
from ccl.runs.cost import Cost, estimate, step_sizes
from ccl.runs.throughput import ASSUMED_GPU_RATE, clock, in_words, measured_rate, sheet

# A ResNet-18 of few channels: where its operations don't matter they are counted quickly.
NARROW = "encoder.width=8"


def test_images_are_counted_with_the_memory_of_earlier_steps() -> None:
    settings = load_settings("cifar100", ["strategy=simple_rehearsal", "epochs=2", NARROW])
    sizes = step_sizes(settings)
    assert sizes == ([10_000] * 5, [20] * 5, 10_000)
    # 20 classes a step, 20 images kept of each: 400 more in each step
    assert estimate(settings, *sizes).num_images == 2 * (5 * 10_000 + 400 * (0 + 1 + 2 + 3 + 4))
    plain = load_settings("cifar100", ["strategy=finetuning", "epochs=2", NARROW])
    assert estimate(plain, *sizes).num_images == 2 * 50_000
    at_once = load_settings("cifar100", ["strategy=upper_bound", "epochs=2", NARROW])
    assert estimate(at_once, *sizes).num_images == 2 * 50_000


def test_a_budget_bounds_the_memory_that_is_counted() -> None:
    def images(*changes: str) -> int:
        settings = load_settings("cifar100", ["strategy=simple_rehearsal", "epochs=1", NARROW, *changes])
        return estimate(settings, [10_000] * 4, [20] * 4, 0).num_images - 40_000

    assert images("memory.clusters=estimate") == images() == 400 * (1 + 2 + 3)
    assert images("memory.clusters=7") == 140 * (1 + 2 + 3)
    assert images("memory.budget=500") == 3 * 500
    assert images("memory.budget=15000") == 10_000 + 15_000 + 15_000
    assert images("memory.budget=3 MB") == 3 * (3_000_000 // (3 * 32 * 32))


def test_operations_follow_the_passes_of_each_strategy() -> None:
    def operations(*changes: str) -> float:
        settings = load_settings("cifar100-mini", ["epochs=1", "strategy=finetuning", *changes])
        return estimate(settings, [1000, 1000], [5, 5], 0).operations

    # A backward pass costs nearly two forward ones: the images themselves need no gradient.
    one = estimate(load_settings("cifar100-mini"), [1000], [5], 0).forward_operations
    near = partial(pytest.approx, rel=0.05)
    assert operations() == near(2000 * 4 * one)
    assert operations("objective=simclr") == near(2000 * 6 * one)
    assert operations("objective=insdisc") == near(2000 * 3 * one)
    assert operations("strategy=simple_rehearsal") == operations() * 2100 / 2000
    assert operations("strategy=ccl") - operations("strategy=simple_rehearsal") == near(100 * 5 * one)


def test_operations_of_a_resnet_are_those_of_its_layers() -> None:
    """The published count of ResNet-50 at 224 px is 4.1 billion multiply-adds; an operation here is one of the two."""
    from_paper = estimate(load_settings("imagenet-sub"), [1000], [5], 0).forward_operations
    assert from_paper == pytest.approx(2 * 4.1e9, rel=0.02)


def test_sizes_are_known_by_name_or_counted() -> None:
    assert step_sizes(load_settings("cifar100-mini")) == ([2000] * 5, [4] * 5, 2000)
    assert sum(step_sizes(load_settings("imagenet-full"))[0]) == pytest.approx(1_281_167, rel=1e-4)
    few = ["dataset=digits,capitals", "batch_size=16", "data.images_per_class=7", "data.classes={digits: 3}"]
    counted = load_settings("demo", few)
    assert step_sizes(counted) == ([21, 70], [3, 10], 13 * 40)


def test_networks_are_counted_with_their_copies() -> None:
    """ResNet-18 of the CIFAR stem: 11,168,832 of the backbone, an MLP head of 512·512 + 512 + 512·128 + 128."""
    parameters = 11_168_832 + 512 * 512 + 512 + 512 * 128 + 128

    def cost(*changes: str) -> Cost:
        return estimate(load_settings("cifar100", ["strategy=finetuning", *changes]), [10_000] * 5, [20] * 5, 10_000)

    plain, whole, simclr = cost(), cost("strategy=ccl"), cost("objective=simclr")
    assert plain.parameters == parameters
    queue = 4096 * 128
    near = partial(pytest.approx, rel=0.003)  # batch norm's statistics and the queue's ids come on top
    assert plain.network_bytes == near(
        4 * (2 * parameters + queue) + 8 * parameters
    )  # two networks; gradient, momentum
    assert whole.network_bytes - plain.network_bytes == near(4 * (parameters + 128 * 128))  # teacher, queue
    assert simclr.network_bytes == near(4 * parameters + 8 * parameters)
    assert cost("objective=insdisc").network_bytes - simclr.network_bytes == near(10_000 * (4 * 128 + 8))  # the bank
    assert simclr.checkpoint_bytes == near(4 * parameters + 4 * parameters)
    assert simclr.activation_bytes == 2 * plain.activation_bytes
    assert plain.num_updates == 5 * 200 * 20  # 10,000 ÷ 512, rounded up


def test_reading_counts_probes_and_selection() -> None:
    plain = load_settings("cifar100", ["strategy=finetuning", "probe.after=never", NARROW])
    assert estimate(plain, [100] * 5, [2] * 5, 3000).num_read == 0
    chosen = load_settings("cifar100", ["strategy=ccl", "probe.after=last"])
    assert estimate(chosen, [100] * 5, [2] * 5, 3000).num_read == 500 * 7 + 2 * (500 + 3000)
    assert estimate(chosen, [100] * 5, [2] * 5, 0).num_read == 500 * 7
    drawn = load_settings(
        "cifar100", ["strategy=simple_rehearsal", "probe.after=never", "memory.clusters=estimate", NARROW]
    )
    assert estimate(drawn, [100] * 5, [2] * 5, 0).num_read == 500
    budget = load_settings("cifar100", ["strategy=ccl", "probe.after=never", "memory.budget=9", "memory.per_cluster=0"])
    assert estimate(budget, [100] * 5, [2] * 5, 0).num_read == 500 * 7
    cost = estimate(chosen, [100] * 5, [2] * 5, 3000)
    read = cost.passes - cost.operations / cost.operations_per_image
    assert read == pytest.approx(cost.num_read / 4, rel=0.05)  # MoCo's image in training: four forward passes


def test_a_rate_is_measured_with_views_for_every_objective() -> None:
    for objective in OBJECTIVES:
        settings = load_settings("demo", ["strategy=simple_rehearsal", f"objective={objective}", "batch_size=16"])
        assert 10 < measured_rate(settings, seconds=0.05) < 1e6


def test_the_words() -> None:
    settings = load_settings("cifar100-mini", ["strategy=finetuning"])
    cost = estimate(settings, [2000] * 5, [4] * 5, 2000)
    assert in_words([cost] * 2, None).startswith("2 runs, 2.0 million image passes, ")
    hours = cost.operations / ASSUMED_GPU_RATE
    assert f"about {clock(hours)} on one GPU" in in_words([cost], None)
    assert f"about {clock(cost.passes / 1000)} in one process here (1,000 images/s)" in in_words([cost], 1000.0)
    terms = dict(sheet(settings, cost, 1000.0))
    assert terms["training"].startswith("1.00 million image passes in 8,000 updates")
    assert terms["time here"].startswith(f"about {clock(cost.passes / 1000)}")
    assert "time here" not in dict(sheet(settings, cost, None))
    assert [clock(value) for value in (45, 600, 7200, 864_000)] == [
        "45 seconds",
        "10 minutes",
        "2.0 hours",
        "10.0 days",
    ]


def test_statistics_take_half_a_pass_for_each_batch_norm() -> None:
    def read(*changes: str) -> int:
        settings = load_settings("cifar100", ["epochs=1", NARROW, *changes])
        return estimate(settings, [1000, 1000], [20, 20], 0).num_read

    # ResNet-18 has 20; 400 images are remembered of each step
    assert read("strategy=finetuning") == 0
    assert read("strategy=weight_merging") == 10 * 2000
    assert read("strategy=merged_rehearsal") == 10 * (2000 + 400)
    assert read("strategy=finetuning", "encoder.statistics=remembered") == 10 * 2000
    assert read("strategy=simple_rehearsal", "encoder.statistics=remembered") == 10 * (400 + 800)
    assert read("strategy=simple_rehearsal", "encoder.statistics=accumulated") == 10 * 2000
