"""Steps of a stream, checked by hand-made cases and by what must hold for any labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ccl.data import (
    ArraySource,
    Dataset,
    FileSource,
    blurred_incremental,
    class_incremental,
    data_incremental,
    describe,
    domain_incremental,
    of_classes,
    task_free,
)
from ccl.errors import UserError


@given(
    labels=st.lists(st.integers(-3, 12), min_size=1, max_size=60),
    num_steps=st.integers(1, 12),
    seed=st.integers(0, 2**40),
)
def test_steps_cut_all_images_by_class_into_nearly_equal_parts(labels: list[int], num_steps: int, seed: int) -> None:
    num_steps = min(num_steps, len(set(labels)))
    steps = class_incremental(labels, num_steps, seed)
    assert len(steps) == num_steps
    assert sorted(c for step in steps for c in step.classes) == sorted(set(labels))
    sizes = [len(step.classes) for step in steps]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    for step in steps:
        assert step.indices.tolist() == [n for n, label in enumerate(labels) if label in step.classes]


def test_the_order_of_classes_comes_from_the_seed_alone() -> None:
    labels = np.arange(100) % 20
    first = [step.classes for step in class_incremental(labels, 4, seed=1)]
    other_images = torch.arange(20).repeat_interleave(3).flip(0)
    assert [step.classes for step in class_incremental(other_images, 4, seed=1)] == first
    assert [step.classes for step in class_incremental(labels, 4, seed=2)] != first
    assert first[0] != (0, 1, 2, 3, 4)
    # Another number of steps cuts the same order elsewhere.
    halves = class_incremental(labels, 2, seed=1)
    assert set(halves[0].classes) == set(first[0]) | set(first[1])


def test_every_class_can_come_first() -> None:
    firsts = {class_incremental(range(4), 4, seed)[0].classes for seed in range(60)}
    assert firsts == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize(("num_steps", "nearest"), [(5, 3), (0, 1), (-2, 1)])
def test_an_impossible_number_of_steps_names_the_nearest_possible_one(num_steps: int, nearest: int) -> None:
    with pytest.raises(
        UserError, match=rf"^3 classes can't be cut in {num_steps} steps; nearest valid value: {nearest}$"
    ):
        class_incremental([0, 1, 2, 1], num_steps, seed=0)


def test_no_labels_no_steps() -> None:
    with pytest.raises(UserError, match="no classes to cut"):
        class_incremental([], 1, seed=0)


def test_of_classes_may_be_empty() -> None:
    assert of_classes([3, 1, 3, 2], [3, 2]).tolist() == [0, 2, 3]
    assert of_classes([3, 1], []).tolist() == []
    assert of_classes(torch.tensor([3, 1]), [7]).tolist() == []


def test_describe_says_when_steps_are_uneven() -> None:
    assert describe(class_incremental(range(100), 3, 0)) == "100 classes in 3 steps: 34, 33, 33"
    assert describe(class_incremental(range(100), 4, 0)) == "100 classes in 4 steps of 25"
    assert describe(class_incremental(range(6), 1, 0)) == "6 classes in 1 step of 6"


def test_describe_counts_images_where_steps_share_classes() -> None:
    ids, labels = torch.arange(500), torch.arange(500) % 10
    assert describe(data_incremental(ids, 4, 0, labels)) == "500 images of 10 classes in 4 steps of 125"
    assert describe(data_incremental(ids, 3, 0)) == "500 images in 3 steps: 167, 167, 166"
    assert describe(task_free(ids, 9, 0, labels)) == "500 images of 10 classes in 56 steps of 5 to 9"
    assert describe(blurred_incremental(ids, labels, 5, 0.0, 0)) == "10 classes in 5 steps of 2"


def _tiny(name: str, num: int, shade: int, *, side: int = 4, has_labels: bool = True, has_test: bool = True) -> Dataset:
    images = torch.full((num, 3, side, side), shade, dtype=torch.uint8)
    labels = torch.arange(num) % 2
    return Dataset(
        name=name,
        train=ArraySource(images),
        train_labels=labels if has_labels else None,
        test=ArraySource(images[:2] + 1) if has_test else None,
        test_labels=labels[:2] if has_labels and has_test else None,
        class_names=("a", "b") if has_labels else (),
        fingerprint=name,
    )


@pytest.mark.parametrize("second_side", [4, 6])
def test_domains_are_joined_with_offset_labels_and_distinct_ids(second_side: int) -> None:
    whole, steps = domain_incremental([_tiny("x", 3, 10), _tiny("y", 4, 20, side=second_side)])
    assert whole.class_names == ("x/a", "x/b", "y/a", "y/b")
    assert whole.train_labels is not None
    assert whole.train_labels.tolist() == [0, 1, 0, 2, 3, 2, 3]
    assert whole.test_labels is not None
    assert whole.test_labels.tolist() == [0, 1, 2, 3]
    assert whole.train.ids.tolist() == list(range(7))
    assert whole.test is not None
    assert whole.test.ids.tolist() == [7, 8, 9, 10]
    assert [(step.name, step.classes, step.indices.tolist()) for step in steps] == [
        ("x", (0, 1), [0, 1, 2]),
        ("y", (2, 3), [3, 4, 5, 6]),
    ]
    assert [whole.train.picture(n).getpixel((0, 0))[0] for n in (2, 3)] == [10, 20]
    assert whole.test.picture(3).getpixel((0, 0)) == (21, 21, 21)
    assert whole.train.image_size == ((4, 4) if second_side == 4 else None)
    assert whole.train.subset(steps[1].indices).ids.tolist() == [3, 4, 5, 6]


def test_one_unlabelled_domain_makes_the_whole_unlabelled() -> None:
    whole, steps = domain_incremental([_tiny("x", 3, 10), _tiny("y", 2, 20, has_labels=False, has_test=False)])
    assert whole.train_labels is None
    assert whole.test is None
    assert whole.test_labels is None
    assert [step.classes for step in steps] == [(), ()]
    assert describe(steps) == "5 images in 2 steps: 3, 2"


def test_files_and_arrays_can_be_joined(tmp_path) -> None:  # type: ignore[no-untyped-def]
    Image.new("RGB", (5, 7), (1, 2, 3)).save(tmp_path / "a.png")
    files = Dataset("f", FileSource([tmp_path / "a.png"]), None, None, None, (), "f")
    whole, _ = domain_incremental([files, _tiny("x", 2, 9)])
    assert whole.train.picture(0).size == (5, 7)
    assert whole.train.picture(1).getpixel((0, 0)) == (9, 9, 9)
    assert whole.train.ids.tolist() == [0, 1, 2]


def test_order_of_domains_changes_the_fingerprint_and_equal_names_are_refused() -> None:
    x, y = _tiny("x", 2, 1), _tiny("y", 2, 1)
    assert domain_incremental([x, y])[0].fingerprint != domain_incremental([y, x])[0].fingerprint
    with pytest.raises(UserError, match="distinct names, got x, x"):
        domain_incremental([x, x])
