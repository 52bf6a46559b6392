"""Impossible combinations that show only with the data: one line with the nearest valid value."""

import pytest

from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.memory.budget import Budget
from ccl.reading import build_device
from ccl.runs.build import build_selection
from ccl.runs.stream_builder import build_stream
from ccl.settings import differences

SMALL = ("dataset=symbols,textures", "data.resize=16", "data.images_per_class=6", "data.classes=4", "batch_size=12")


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["batch_size=40"], "batch_size 40 exceeds the 24 images of step 1; nearest valid value: 24"),
        (["batch_size=40", "encoder.batch_norm_groups=5"], "nearest valid value: 20"),
        (["memory.clusters=30"], "memory.clusters 30 exceeds the 24 images of step 1; nearest valid value: 24"),
        (["memory.budget=1"], "memory.budget 1 can't hold an image of each of 2 steps; nearest valid value: 2"),
        (["dataset=symbols", "steps=9"], "4 classes can't be cut in 9 steps; nearest valid value: 4"),
        (["steps=3"], "a domain-incremental stream has one step per dataset: 2"),
        (["dataset=symbols,symbols"], "dataset names one set twice"),
        (["dataset=symbol"], "did you mean 'symbols'?"),
        (["data.classes=40"], "nearest valid value: 10"),
        (["dataset=cifar100", "data.root=/nowhere"], "--data-root"),
    ],
)
def test_impossible_combinations_are_refused(assignments: list[str], told: str) -> None:
    settings = load_settings("demo", [*SMALL, *assignments])
    with pytest.raises(UserError) as caught:
        build_stream(settings)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_of_clusters_is_given_counted_or_left_to_an_estimate() -> None:
    asked = {"5": [5, 5], "null": [4, 4], "estimate": [None, None]}
    for words, expected in asked.items():
        assert build_stream(load_settings("demo", [*SMALL, f"memory.clusters={words}"])).num_clusters == expected
    # Only 24 images a step, and nobody asks how many groups they have.
    build_stream(load_settings("demo", [*SMALL, "memory.clusters=30", "memory.per_cluster=0"]))
    build_stream(load_settings("demo", [*SMALL, "memory.clusters=30", "memory.budget=9", "strategy=simple_rehearsal"]))


@pytest.mark.parametrize(
    ("words", "budget"), [("null", None), ("30", Budget(30, "images")), ("200 kB", Budget(200_000, "bytes"))]
)
def test_a_budget_is_of_images_or_bytes(words: str, budget: Budget | None) -> None:
    selection = build_selection(load_settings("demo", [f"memory.budget={words}"]))
    assert selection.budget == budget


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="try device=cpu"):
        build_device(load_settings("demo", ["device=cuda:99"]))


def test_upper_bound_gets_everything_at_once() -> None:
    stream = build_stream(load_settings("demo", [*SMALL, "strategy=upper_bound"]))
    assert [len(source) for source in stream.arrivals] == [48]
    assert len(set(stream.arrivals[0].ids.tolist())) == 48
    assert len(stream.probe_parts) == 2


def test_a_joined_dataset_can_be_cut_by_class() -> None:
    stream = build_stream(load_settings("demo", [*SMALL, "data.stream=class", "steps=4"]))
    assert [len(step.classes) for step in stream.steps] == [2, 2, 2, 2]
    other = build_stream(load_settings("demo", [*SMALL, "data.stream=class", "steps=4", "seed=1"]))
    assert [step.classes for step in stream.steps] != [step.classes for step in other.steps]


def test_each_dataset_may_have_its_own_classes() -> None:
    stream = build_stream(load_settings("demo", [*SMALL, "data.classes={symbols: 2, textures: [checker, dots]}"]))
    assert [len(step.classes) for step in stream.steps] == [2, 2]
    some = build_stream(load_settings("demo", [*SMALL, "data.classes={symbols: 2}"]))
    assert [len(step.classes) for step in some.steps] == [2, 10]
    assert some.dataset.class_names[2:] != stream.dataset.class_names[2:]


def test_classes_of_a_dataset_that_is_not_there_are_refused() -> None:
    with pytest.raises(UserError, match=r"data.classes names 'symbol', no dataset here; did you mean 'symbols'"):
        load_settings("demo", [*SMALL, "data.classes={symbol: 2}"])


def test_other_classes_are_another_run() -> None:
    one, two = (load_settings("demo", [*SMALL, f"data.classes={value}"]) for value in ("{symbols: 2}", "{symbols: 3}"))
    whole = load_settings("demo", [*SMALL, "data.classes=4"])
    assert differences(one, two) == ["data.classes: {'symbols': 2} -> {'symbols': 3}"]
    assert differences(one, whole) == ["data.classes: {'symbols': 2} -> 4"]
    assert differences(one, one) == []
