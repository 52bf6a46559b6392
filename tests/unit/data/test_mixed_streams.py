"""Streams as real drops look: random parts, blurred borders, no borders. Each image arrives once, by seed and id."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccl.data import (
    Step,
    arrival_order,
    blurred_incremental,
    class_incremental,
    cut_alike,
    data_incremental,
    task_free,
)
from ccl.errors import UserError

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
    with pytest.raises(UserError, match="1 classes can't be cut in 2 steps; nearest valid value: 1"):
        blurred_incremental(torch.arange(7), labels, 2, 0.5, 0)


def test_a_free_stream_without_mixing_is_one_class_after_the_other() -> None:
    order = arrival_order(torch.arange(120), 5, LABELS, 0.0)
    turns = [step.classes[0] for step in class_incremental(LABELS, 8, 5)]
    assert LABELS[order].tolist() == [label for label in turns for _ in range(15)]
    assert order[:15].tolist() != sorted(order[:15].tolist())


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


def test_test_images_follow_the_classes_of_the_training_images() -> None:
    """Another set, with other numbers of each class and other ids, has its classes in the same order."""
    other = torch.tensor([3, 3, 0, 7, 1, 1, 1, 6])
    order = arrival_order(500 + torch.arange(8), 5, other, 0.0)
    turns = [step.classes[0] for step in class_incremental(LABELS, 8, 5)]
    assert list(dict.fromkeys(other[order].tolist())) == [label for label in turns if label in other]


def test_without_labels_a_free_stream_is_random_and_the_parts_are_those_of_a_data_stream() -> None:
    ids = torch.arange(90)
    assert arrivals(task_free(ids, 30, 4)) == arrivals(data_incremental(ids, 3, 4))
    assert [len(step.indices) for step in task_free(ids, 40, 4, minimum=20)] == [40, 50]


def test_parts_of_other_images_have_the_same_shares() -> None:
    parts = cut_alike(torch.arange(10).flip(0), [30, 30, 40])
    assert [part.tolist() for part in parts] == [[7, 8, 9], [4, 5, 6], [0, 1, 2, 3]]
    assert [len(part) for part in cut_alike(torch.arange(2), [5, 5, 5])] == [0, 1, 1]
    assert [len(part) for part in cut_alike(torch.arange(100), [7, 7, 6])] == [35, 35, 30]


@pytest.mark.parametrize(
    ("call", "told"),
    [
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
