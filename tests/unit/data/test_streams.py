"""Steps of a stream, chunks of what comes and batches of an epoch: hand-made cases, and what must hold for any."""

from collections.abc import Callable, Iterator
from itertools import count, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccl.data import (
    ArraySource,
    Dataset,
    Step,
    arrival_order,
    blurred_incremental,
    chunked,
    class_incremental,
    cut_alike,
    data_incremental,
    describe,
    domain_incremental,
    epoch_batches,
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
    assert {class_incremental(range(4), 4, seed)[0].classes for seed in range(60)} == {(0,), (1,), (2,), (3,)}
    # Another number of steps cuts the same order elsewhere.
    halves = class_incremental(labels, 2, seed=1)
    assert set(halves[0].classes) == set(first[0]) | set(first[1])


def test_of_classes_may_be_empty() -> None:
    assert of_classes([3, 1, 3, 2], [3, 2]).tolist() == [0, 2, 3]
    assert of_classes([3, 1], []).tolist() == []
    assert of_classes(torch.tensor([3, 1]), [7]).tolist() == []


def test_describe_says_when_steps_are_uneven() -> None:
    assert describe(class_incremental(range(100), 3, 0)) == "100 classes in 3 steps of 33 to 34"
    assert describe(class_incremental(range(100), 4, 0)) == "100 classes in 4 steps of 25"
    assert describe(class_incremental(range(6), 1, 0)) == "6 classes in 1 step of 6"
    # Images are counted where steps share classes.
    ids, labels = torch.arange(500), torch.arange(500) % 10
    assert describe(data_incremental(ids, 4, 0, labels)) == "500 images of 10 classes in 4 steps of 125"
    assert describe(data_incremental(ids, 3, 0)) == "500 images in 3 steps of 166 to 167"
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
    assert whole.train_labels.tolist() == [0, 1, 0, 2, 3, 2, 3]
    assert whole.test_labels.tolist() == [0, 1, 2, 3]
    assert whole.train.ids.tolist() == list(range(7))
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
    assert describe(steps) == "5 images in 2 steps of 2 to 3"


def test_order_of_domains_changes_the_fingerprint_and_equal_names_are_refused() -> None:
    x, y = _tiny("x", 2, 1), _tiny("y", 2, 1)
    assert domain_incremental([x, y])[0].fingerprint != domain_incremental([y, x])[0].fingerprint
    with pytest.raises(UserError, match="distinct names, got x, x"):
        domain_incremental([x, x])


# -- random parts, blurred borders, no borders --

Cut = Callable[[Tensor, Tensor, int], list[Step]]  # ids, labels, seed
CUTS: dict[str, Cut] = {
    "data": lambda ids, labels, seed: data_incremental(ids, 4, seed, labels),
    "blurred": lambda ids, labels, seed: blurred_incremental(ids, labels, 4, 0.3, seed),
    "free": lambda ids, labels, seed: task_free(ids, 30, seed, labels, 0.5),  # many times are equal at one half
}
LABELS = torch.arange(120) % 8


def arrivals(steps: list[Step]) -> list[list[int]]:
    return [step.indices.tolist() for step in steps]


def check(steps: list[Step], labels: Tensor) -> None:
    """Every image once, positions sorted, no step empty, and the classes are those of the images."""
    assert sorted(position for part in arrivals(steps) for position in part) == list(range(len(labels)))
    for number, step in enumerate(steps, start=1):
        assert step.name == f"step {number}"
        assert step.indices.tolist() == sorted(step.indices.tolist())
        assert step.classes == tuple(sorted({int(labels[position]) for position in step.indices}))
        assert len(step.indices)


@given(
    labels=st.lists(st.integers(-3, 9), min_size=1, max_size=70).map(torch.tensor),
    seed=st.integers(0, 2**40),
    mixing=st.floats(0, 1),
    data=st.data(),
)
def test_every_image_arrives_once(labels: Tensor, seed: int, mixing: float, data: st.DataObject) -> None:
    ids = 1000 + 3 * torch.arange(len(labels))
    num_steps = data.draw(st.integers(1, len(labels)))
    in_parts = data_incremental(ids, num_steps, seed, labels)
    check(in_parts, labels)
    sizes = [len(step.indices) for step in in_parts]
    assert len(sizes) == num_steps
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    check(blurred_incremental(ids, labels, min(num_steps, len(labels.unique())), mixing, seed), labels)
    chunk = data.draw(st.integers(1, len(labels) + 5))
    in_chunks = task_free(ids, chunk, seed, labels, mixing)
    check(in_chunks, labels)
    assert [len(step.indices) for step in in_chunks[:-1]] == [chunk] * ((len(labels) - 1) // chunk)


@pytest.mark.parametrize("kind", CUTS)
def test_the_seed_and_the_ids_alone_decide(kind: str) -> None:
    cut, ids = CUTS[kind], torch.arange(120)
    first = arrivals(cut(ids, LABELS, 1))
    assert arrivals(cut(ids, LABELS, 1)) == first
    assert arrivals(cut(ids, LABELS, 2)) != first
    assert arrivals(cut(ids + 500, LABELS, 1)) != first
    # The same images in another order of positions arrive in the same steps.
    turned = cut(ids.flip(0), LABELS.flip(0), 1)
    assert [sorted(119 - position for position in part) for part in arrivals(turned)] == first


def test_random_parts_mix_the_classes_and_need_no_labels() -> None:
    steps = data_incremental(torch.arange(4000), 4, 0, torch.arange(4000) // 1000)  # class by class, as files lie
    for step in steps:
        counts = torch.bincount(step.indices // 1000, minlength=4)
        assert (counts - 250).abs().max() < 60  # five standard deviations
    drifting = data_incremental(torch.arange(4000), 4, 0, torch.arange(4000) // 1000, mixing=0.0)
    assert [len(step.classes) for step in drifting] == [1] * 4
    without = data_incremental(torch.arange(4000), 4, 0)
    assert arrivals(without) == arrivals(steps)
    assert [step.classes for step in without] == [()] * 4


@pytest.mark.parametrize("mixing", [0.1, 0.25, 0.5, 1.0])
def test_a_blurred_step_keeps_its_share_and_every_other_gets_as_much_of_the_rest(mixing: float) -> None:
    labels = torch.arange(400) % 10  # 5 steps of 80 images
    own = class_incremental(labels, 5, seed=3)
    steps = blurred_incremental(torch.arange(400), labels, 5, mixing, seed=3)
    home = torch.zeros(400, dtype=torch.long)
    for number, step in enumerate(own):
        home[step.indices] = number
    given = round(80 * mixing)
    for number, step in enumerate(steps):
        counts = torch.bincount(home[step.indices], minlength=5)
        assert counts[number] == 80 - given
        others = counts[torch.arange(5) != number]
        assert others.sum() == given  # as many come as go
        assert others.max() - others.min() <= 1


def test_what_is_left_over_in_dealing_does_not_pile_up() -> None:
    labels = torch.arange(70) // 10  # 7 steps of 10, each gives 3 to 6 others
    assert [len(step.indices) for step in blurred_incremental(torch.arange(70), labels, 7, 0.3, 0)] == [10] * 7


def test_without_mixing_a_blurred_stream_is_class_incremental() -> None:
    for seed in range(3):
        blurred = blurred_incremental(torch.arange(120), LABELS, 3, 0.0, seed)
        assert [(step.name, step.classes, step.indices.tolist()) for step in blurred] == [
            (step.name, step.classes, step.indices.tolist()) for step in class_incremental(LABELS, 3, seed)
        ]


def test_one_class_has_no_border() -> None:
    labels = torch.zeros(7, dtype=torch.long)
    for mixing in (0.0, 0.5, 1.0):
        (step,) = blurred_incremental(torch.arange(7), labels, 1, mixing, 0)
        assert step.classes == (0,)
        assert len(step.indices) == 7


def test_a_free_stream_without_mixing_is_one_class_after_the_other() -> None:
    order = arrival_order(torch.arange(120), 5, LABELS, 0.0)
    turns = [step.classes[0] for step in class_incremental(LABELS, 8, 5)]
    assert LABELS[order].tolist() == [label for label in turns for _ in range(15)]
    assert order[:15].tolist() != sorted(order[:15].tolist())
    # Another set, with other numbers of each class and other ids, has its classes in the same order.
    other = torch.tensor([3, 3, 0, 7, 1, 1, 1, 6])
    order = arrival_order(500 + torch.arange(8), 5, other, 0.0)
    assert list(dict.fromkeys(other[order].tolist())) == [label for label in turns if label in other]


def test_classes_of_a_free_stream_come_and_go_gradually() -> None:
    labels = torch.arange(2000) // 200
    orders = {mixing: arrival_order(torch.arange(2000), 0, labels, mixing) for mixing in (0.0, 0.2, 0.5, 1.0)}

    def spread(mixing: float) -> float:
        """Mean distance of an image from the middle of its class, as a share of the stream."""
        places = torch.argsort(orders[mixing]).double() / 2000
        middles = torch.stack([places[labels == label].mean() for label in range(10)])
        return float((places - middles[labels]).abs().mean())

    assert spread(0.0) == pytest.approx(0.1 / 4, rel=0.02)
    assert spread(1.0) == pytest.approx(1 / 4, rel=0.05)
    assert spread(0.0) < spread(0.2) < spread(0.5) < spread(1.0)
    # With a mixing of 0.2 a class lasts for 0.2 + 0.8 · 0.1 of the time, and its middles stay in the order of turns.
    places = torch.argsort(orders[0.2]).double() / 2000
    turns = [step.classes[0] for step in class_incremental(labels, 10, 0)]
    middles = [float(places[labels == label].mean()) for label in turns]
    assert middles == sorted(middles)
    lasting = [float(places[labels == label].max() - places[labels == label].min()) for label in turns[3:7]]
    assert all(0.2 < one < 0.36 for one in lasting)


def test_without_labels_a_free_stream_is_random_and_the_parts_are_those_of_a_data_stream() -> None:
    ids = torch.arange(90)
    assert arrivals(task_free(ids, 30, 4)) == arrivals(data_incremental(ids, 3, 4))


def test_parts_of_other_images_have_the_same_shares() -> None:
    parts = cut_alike(torch.arange(10).flip(0), [30, 30, 40])
    assert [part.tolist() for part in parts] == [[7, 8, 9], [4, 5, 6], [0, 1, 2, 3]]
    assert [len(part) for part in cut_alike(torch.arange(2), [5, 5, 5])] == [0, 1, 1]
    assert [len(part) for part in cut_alike(torch.arange(100), [7, 7, 6])] == [35, 35, 30]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda ids: class_incremental(ids % 3, 5, 0), "3 classes can't be cut in 5 steps; nearest valid value: 3"),
        (lambda ids: class_incremental(ids % 3, 0, 0), "3 classes can't be cut in 0 steps; nearest valid value: 1"),
        (lambda ids: class_incremental(ids % 3, -2, 0), "nearest valid value: 1"),
        (lambda ids: class_incremental([], 1, 0), "no classes to cut"),
        (
            lambda ids: blurred_incremental(ids, 0 * ids, 2, 0.5, 0),
            "1 classes can't be cut in 2 steps; nearest valid value: 1",
        ),
        (lambda ids: data_incremental(ids, 9, 0), "8 images can't be cut in 9 steps; nearest valid value: 8"),
        (lambda ids: data_incremental(ids, 0, 0), "nearest valid value: 1"),
        (lambda ids: data_incremental(ids[:0], 1, 0), "there are no images"),
        (lambda ids: task_free(ids[:0], 5, 0), "there are no images"),
        (lambda ids: task_free(ids, 0, 0), "nearest valid value: 1"),
        (lambda ids: task_free(ids, 4, 0, ids, 1.5), "mixing is a share, not 1.5; nearest valid value: 1"),
        (lambda ids: blurred_incremental(ids, ids, 2, -0.1, 0), "nearest valid value: 0"),
    ],
)
def test_what_can_t_be_cut_is_told_with_what_can(call: Callable[[Tensor], list[Step]], told: str) -> None:
    with pytest.raises(UserError) as caught:
        call(torch.arange(8))
    assert told in str(caught.value)


# -- chunks --


@given(num_items=st.integers(0, 60), size=st.integers(1, 12), data=st.data())
def test_every_item_once_in_its_order(num_items: int, size: int, data: st.DataObject) -> None:
    minimum = data.draw(st.integers(1, size))
    chunks = list(chunked(iter(range(num_items)), size, minimum))
    assert [item for chunk in chunks for item in chunk] == list(range(num_items))
    assert all(len(chunk) == size for chunk in chunks[:-1])
    if len(chunks) > 1:
        assert minimum <= len(chunks[-1]) < size + minimum
    assert (num_items > 0) == bool(chunks)
    assert [len(chunk) for chunk in chunked("x" * 9, 4, 2)] == [4, 5]  # a last one below the minimum joins another


@pytest.mark.parametrize(("minimum", "read"), [(1, 3), (2, 5), (3, 6)])
def test_no_more_is_read_than_the_next_chunk_needs(minimum: int, read: int) -> None:
    taken = []

    def endless() -> Iterator[int]:
        for number in count():
            taken.append(number)
            yield number

    chunks = chunked(endless(), 3, minimum)
    assert taken == []
    assert next(chunks) == [0, 1, 2]
    assert len(taken) == read
    assert list(islice(chunks, 2)) == [[3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("size", "minimum", "nearest"), [(0, 1, 1), (-3, 1, 1), (4, 5, 4), (4, 0, 1)])
def test_impossible_sizes_are_refused_at_once(size: int, minimum: int, nearest: int) -> None:
    with pytest.raises(UserError, match=f"nearest valid value: {nearest}$"):
        list(chunked([1], size, minimum))


# -- batches of an epoch --


@given(num=st.integers(0, 300), batch_size=st.integers(1, 70), multiple=st.integers(1, 9), epoch=st.integers(0, 99))
def test_sizes_are_equal_multiples_and_nearly_all_images_come_once(
    num: int, batch_size: int, multiple: int, epoch: int
) -> None:
    assert [len(batch) for batch in epoch_batches(torch.arange(11), 5, 0, multiple=2)] == [4, 4, 2]
    if batch_size < multiple or 0 < num < multiple:
        with pytest.raises(UserError):
            epoch_batches(torch.arange(num), batch_size, 0, epoch, multiple=multiple)
        return
    batches = epoch_batches(torch.arange(num) * 7, batch_size, 0, epoch, multiple=multiple)
    seen = [position for batch in batches for position in batch.tolist()]
    assert len(seen) == len(set(seen)) == num - num % multiple
    assert set(seen) <= set(range(num))
    sizes = [len(batch) for batch in batches]
    assert all(0 < size <= batch_size and size % multiple == 0 for size in sizes)
    if sizes:
        assert max(sizes) - min(sizes) <= multiple
        # One batch fewer could not hold them.
        assert (len(sizes) - 1) * (batch_size // multiple * multiple) < len(seen)


def test_left_out_images_differ_between_epochs() -> None:
    left_out = set()
    for epoch in range(40):
        batches = epoch_batches(torch.arange(9), 8, "run", epoch, multiple=4)
        left_out |= set(range(9)) - set(torch.cat(batches).tolist())
    assert left_out == set(range(9))


def test_order_is_pure_and_depends_on_ids_not_on_their_place() -> None:
    ids = torch.tensor([40, 7, 99, 3, 12, 5])
    order = torch.cat(epoch_batches(ids, 6, 1, 2))
    assert torch.equal(order, torch.cat(epoch_batches(ids, 6, 1, 2)))
    flipped = torch.cat(epoch_batches(ids.flip(0), 6, 1, 2))
    assert torch.equal(ids[order], ids.flip(0)[flipped])
    assert not torch.equal(order, torch.cat(epoch_batches(ids, 6, 1, 3)))
    # The batch size cuts the same order elsewhere.
    assert torch.equal(order, torch.cat(epoch_batches(ids, 2, 1, 2)))
