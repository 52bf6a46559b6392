"""Several processes are one learner: what travels between them, and that two ranks equal one process of two groups."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
import rank_tasks
import torch
import torch.distributed as dist
from combinations import FAST_PAIRS, PAIRS, is_quick
from in_ranks import assert_equal_outcomes, in_ranks
from tiny import same, tiny_settings

from ccl.catalogue import NEGATIVES, OBJECTIVES
from ccl.errors import UserError
from ccl.ranks.process_group import fresh_store
from ccl.reading import build_device
from ccl.runs.build import build_learner
from ccl.runs.stream_builder import build_stream

Spread = Callable[[str], list[dict[str, Any]]]

TWO = "encoder.batch_norm_groups=2"


def combinations(are_quick: bool) -> list[tuple[str, ...]]:
    # One epoch suffices to meet every kind of message; the paper's method has a second, its teacher has moved in it.
    return [
        (TWO, f"strategy={strategy}", f"objective={name}", *(() if strategy == "ccl" else ("epochs=1",)))
        for strategy, name in FAST_PAIRS
        if (is_quick(strategy, name) or (strategy, name) == ("finetuning", "moco_v2")) == are_quick
    ]


def further_pairs(objective: str) -> list[tuple[str, ...]]:
    """Of all that goes together, what is not in the combinations above."""
    return [
        (TWO, f"strategy={strategy}", f"objective={name}", "epochs=1")
        for strategy, name in PAIRS
        if name == objective and (strategy, name) not in FAST_PAIRS
    ]


# What changes which rows meet: four groups, so that each rank splits too; a network of a kind
# that is not the stream's own.
VARIANTS = [
    ("encoder.batch_norm_groups=4", "strategy=ccl", "objective=moco_v2"),
    ("encoder.batch_norm_groups=4", "strategy=ccl", "objective=simclr"),
    (TWO, "strategy=ccl", "encoder.backbone=resnet18", "epochs=1"),
    (TWO, "strategy=ccl", "moco_v2.mask_same_image=true", "extra_sample_queue.mask_same_image=true"),
    (TWO, "strategy=ccl", "objective=insdisc"),
    (TWO, "strategy=ccl", "moco_v2.symmetric=true"),
    ("encoder.batch_norm_groups=4", "strategy=variance_distillation", "objective=byol"),
    ("encoder.batch_norm_groups=4", "strategy=variance_distillation", "objective=barlow_twins"),
    (TWO, "strategy=ccl", "memory.budget=5", "memory.clusters=estimate"),
    # Rows of all ranks meet, those of old images unevenly.
    (TWO, "strategy=predictive_rehearsal", "objective=simclr", "predictive_distillation.images=old", "epochs=1"),
    (TWO, "strategy=cassle", "objective=simclr", "predictive_distillation.distance=barlow", "epochs=1"),
    (TWO, "strategy=cassle", "predictive_distillation.predictor=restart", "epochs=1"),
    (TWO, "strategy=pnr", "moco_v2.symmetric=true", "moco_v2.mask_same_image=true", "epochs=1"),
    (TWO, "strategy=multi_view_rehearsal", "moco_v2.symmetric=true", "epochs=1"),
    (TWO, "strategy=osiris", "cross_task.past=distillation", "composition=pooled", "epochs=1"),
    (TWO, "strategy=cla", "alignment.target=stored", "composition=pooled", "epochs=1"),
    (TWO, "strategy=ccl", "weight_rule=average", "encoder.statistics=remembered"),
    (TWO, "strategy=feature_prediction", "encoder.statistics=accumulated", "epochs=1"),
    (TWO, "strategy=simple_rehearsal", "memory.selection=minred", "memory.budget=5"),
]


THREE = [
    ("encoder.batch_norm_groups=3", f"strategy={strategy}", f"objective={name}", "epochs=1")
    for strategy, name in FAST_PAIRS
    if strategy == ("ccl" if NEGATIVES in OBJECTIVES[name].gives else "variance_distillation")
]
# By name, which begins with the number of ranks: each is learned in one go.
TASKS = {
    "2 ranks": combinations(are_quick=True),
    "2 ranks more": [*combinations(are_quick=False), *VARIANTS],
    "3 ranks": THREE,
    **{f"2 ranks {name}": further_pairs(name) for name in OBJECTIVES if further_pairs(name)},
}
MARKS: dict[str, Any] = {name: () if name == "2 ranks" else pytest.mark.slow for name in TASKS}
SIZES = ["2 ranks", pytest.param("3 ranks", marks=pytest.mark.slow)]
CASES = [
    pytest.param(name, number, marks=MARKS[name], id=f"{name} {' '.join(task)}")
    for name, tasks in TASKS.items()
    for number, task in enumerate(tasks)
]
pytestmark = pytest.mark.timeout(280)


def size_of(name: str) -> int:
    return int(name.split()[0])


@cache
def alone(name: str) -> list[dict[str, Any]]:
    """What one process learns that plays all groups by itself."""
    return rank_tasks.learn_all(TASKS[name])


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Spread:
    """What each rank found."""

    @cache
    def found(name: str) -> list[dict[str, Any]]:
        groups, folder = f"encoder.batch_norm_groups={size_of(name)}", tmp_path_factory.mktemp("ranks")
        return in_ranks(size_of(name), rank_tasks.all_tasks, TASKS[name], groups, folder=folder)

    return found


@pytest.mark.parametrize(("name", "number"), CASES)
def test_ranks_equal_one_process_with_as_many_groups(name: str, number: int, spread: Spread) -> None:
    learned = [rank["learned"][number] for rank in spread(name)]
    assert_equal_outcomes(alone(name)[number], learned)


# Of an update in the last step, with 2 ranks: messages and bytes that a rank receives in them.
TRAFFIC = {"finetuning": (3, 37748), "ccl": (4, 41532)}


@pytest.mark.parametrize("strategy", TRAFFIC)
def test_messages_of_an_update(strategy: str, spread: Spread) -> None:
    epochs = () if strategy == "ccl" else ("epochs=1",)
    number = TASKS["2 ranks"].index((TWO, f"strategy={strategy}", "objective=moco_v2", *epochs))
    for rank in spread("2 ranks"):
        last = rank["learned"][number]["traffic"][-1]
        assert (len(last), sum(last)) == TRAFFIC[strategy]
    assert not any(alone("2 ranks")[number]["traffic"])


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in TASKS if size_of(name) == 2])
def test_no_combination_sends_many_messages(name: str, spread: Spread) -> None:
    for found, combination in zip(spread(name)[0]["learned"], TASKS[name], strict=True):
        assert max(map(len, found["traffic"])) <= 5, combination


@pytest.mark.parametrize("name", SIZES)
def test_gradients_that_travel_early_are_the_same(name: str, spread: Spread) -> None:
    num_ranks = size_of(name)
    for rank in spread(name):
        (first, again), whole = rank["in buckets"], rank["in one message"]
        assert all(sent == num_buckets >= 3 for sent, num_buckets in first["early"])
        more = first["early"][0][1]
        assert [len(t) for t in first["traffic"]] == [len(t) + more for t in whole["traffic"]]
        # A first backward pass and later ones round alike, as a run and its resumption must.
        assert same(first["state"], again["state"])
        if num_ranks == 2:
            assert same(first["state"], whole["state"])  # of two numbers there is one sum
            assert first["losses"] == whole["losses"]
        for name, value in whole["state"].items():
            torch.testing.assert_close(first["state"][name], value, atol=1e-3, rtol=1e-3)


def test_groups_do_matter() -> None:
    """The equality above is worth something only if one process without groups learns otherwise."""
    (whole,) = rank_tasks.learn_all([("strategy=ccl", "encoder.batch_norm_groups=1")])
    with_two = alone("2 ranks")[TASKS["2 ranks"].index((TWO, "strategy=ccl", "objective=moco_v2"))]
    assert abs(whole["losses"][-1]["contrast"] - with_two["losses"][-1]["contrast"]) > 1e-3


@pytest.mark.parametrize("name", SIZES)
def test_every_image_is_met_once_per_epoch_by_one_rank(name: str, spread: Spread) -> None:
    num_ranks = size_of(name)
    met = [rank["met"] for rank in spread(name)]
    arrivals = build_stream(tiny_settings()).arrivals
    for step, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        shares = [rank[step, epoch] for rank in met]
        together = [image for share in shares for image in share]
        num_images = len(arrivals[step]) + 8 * step  # eight are remembered
        # Batches are multiples of the groups: up to groups - 1 images, others in each epoch, wait for the next.
        assert len(set(together)) == len(together) == num_images - num_images % num_ranks
        assert {len(share) for share in shares} == {len(together) // num_ranks}
        assert len(set(together) & set(arrivals[step].ids.tolist())) >= len(arrivals[step]) - num_images % num_ranks


@pytest.mark.parametrize("name", SIZES)
def test_rows_come_together_in_their_order(name: str, spread: Spread) -> None:
    num_ranks = size_of(name)
    count = 2 * num_ranks
    rows = rank_tasks.everyones_rows(count)
    for number, rank in enumerate(spread(name)):
        found = rank["gathered"]
        assert torch.equal(found["even"], rows)
        assert found["numbers"].tolist() == list(range(count))
        assert torch.equal(found["uneven"], rows[: num_ranks + 1])  # the first's two rows and one of each other
        assert torch.equal(found["first only"], rows[::num_ranks])
        assert found["none"].shape == (0, 3)
        assert torch.equal(found["together"][0], rows)
        assert found["together"][1].flatten().tolist() == list(range(count))
        shared = found["order"][number::num_ranks]
        assert shared.tolist() != list(range(count))[number::num_ranks]
        assert torch.equal(found["exchanged"][0], rows[shared])
        assert found["exchanged"][1].flatten().tolist() == shared.tolist()


@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_the_gradient_is_that_of_one_process(name: str, is_uneven: bool, spread: Spread) -> None:
    num_ranks = size_of(name)
    loss, gradient = rank_tasks.gradient(2 * num_ranks, is_uneven)
    for rank in spread(name):
        their_loss, theirs = rank["gradients"][is_uneven]
        assert their_loss == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(theirs, gradient)


@pytest.mark.parametrize("name", SIZES)
def test_ranks_agree(name: str, spread: Spread) -> None:
    num_ranks = size_of(name)
    mean = (num_ranks - 1) / 2
    for number, rank in enumerate(spread(name)):
        found = rank["agreed"]
        assert (found["rank"], found["size"]) == (number, num_ranks)
        assert found["average"][0].tolist() == [[mean, mean], [mean, mean]]
        assert float(found["average"][1]) == 10 * mean
        assert found["largest"] == [num_ranks - 1, 0, 7]
        assert found["from first"]["rank"] == 0
        assert found["from first"]["rows"].tolist() == [0, 1, 2]
        assert found["refusal"] == "refused: no"


@pytest.mark.parametrize("name", SIZES)
def test_readings_and_probes_are_those_of_one_process(name: str, spread: Spread) -> None:
    expected = rank_tasks.readings()
    for rank in spread(name):
        for name, value in expected.items():
            torch.testing.assert_close(rank["read"][name], value)


def test_a_restart_does_not_take_up_what_dead_ranks_have_written() -> None:
    """torchrun's store outlives them: the second rank's old name is there, and the first's old list of names."""
    store = dist.HashStore()
    store.set("ccl/1", "dead")
    store.set("ccl/all", "gone dead")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(fresh_store, store, 0, 2)
        time.sleep(0.2)  # the first now reads a name of the dead
        assert not first.done()
        second = threads.submit(fresh_store, store, 1, 2)
        first.result(timeout=10).set("key", "value")
        second.result(timeout=10).set_timeout(timedelta(seconds=1))
        assert second.result().get("key") == b"value"


@pytest.mark.parametrize(("groups", "count", "advice"), [(3, 2, 4), (4, 3, 6), (8, 16, 16)])
def test_groups_that_cannot_be_spread_are_refused(
    groups: int, count: int, advice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl.ranks.size", lambda: count)
    with pytest.raises(UserError) as caught:
        build_stream(tiny_settings(f"encoder.batch_norm_groups={groups}", "batch_size=24"))
    told = f"encoder.batch_norm_groups {groups} can't be spread over {count} processes; set it to {advice} or another"
    assert str(caught.value) == f"{told} multiple of {count}, or to 1 for all processes together"


def test_each_rank_has_its_part_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccl.ranks.size", lambda: 2)
    learner = build_learner(tiny_settings("encoder.batch_norm_groups=6"), torch.device("cpu"))
    assert {part.num_groups for part in learner.modules() if hasattr(part, "num_groups")} == {3}


def test_one_device_for_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"^device cuda:1 is one device for several processes; set device=cuda"):
        build_device(tiny_settings("device=cuda:1"))
    assert build_device(tiny_settings("device=cpu")) == torch.device("cpu")
