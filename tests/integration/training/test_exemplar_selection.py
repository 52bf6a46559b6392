"""What a stream remembers under a budget, and with a number of clusters that nobody told."""

from pathlib import Path

import pytest
import torch
from breaking import listening
from tiny import learn, tiny_settings

from ccl import memory as memory_module
from ccl import run
from ccl.data import ImageSource, chain
from ccl.encoders import extract
from ccl.errors import UserError
from ccl.memory import estimate_num_clusters, group, herding
from ccl.memory.budget import in_turns
from ccl.reading import build_viewer
from ccl.runs.build import build_learner, build_selection
from ccl.runs.stream_builder import build_stream
from ccl.seeding import permutation
from ccl.settings import Settings
from ccl.training import Learner, Remembered, remember

CPU = torch.device("cpu")
THREE = ("dataset=symbols,textures,greek", "epochs=1")


@pytest.mark.parametrize("strategy", ["ccl", "simple_rehearsal"])
def test_a_stream_never_holds_more_than_its_budget(strategy: str) -> None:
    learner, watcher = learn(tiny_settings(*THREE, f"strategy={strategy}", "memory.budget=7"))
    assert [old for _, old in watcher.sizes] == [0, 7, 7]
    assert [(what.num_kept, what.num_images) for what in watcher.kept] == [(7, 7), (3, 7), (2, 7)]
    assert learner.memory.steps.bincount().tolist() == [3, 2, 2]
    assert [what.num_clusters for what in watcher.kept] == ([4] * 3 if strategy == "ccl" else [0] * 3)


def test_what_is_left_of_a_random_draw_is_what_a_smaller_one_had_drawn() -> None:
    settings = tiny_settings(*THREE, "strategy=simple_rehearsal", "memory.budget=21")
    learner, _ = learn(settings)
    for step, source in enumerate(build_stream(settings).arrivals):
        unscored = torch.full((len(source),), float("nan")), torch.full((len(source),), -1)
        first = source.ids[in_turns(*unscored, source.ids, settings.seed, step)[:7]]
        assert set(learner.memory.ids[learner.memory.steps == step].tolist()) == set(first.tolist())


def test_a_share_is_spread_over_the_clusters() -> None:
    learner, _ = learn(tiny_settings("strategy=ccl", "memory.budget=8", "memory.clusters=4"))
    for step in range(2):
        assert sorted(learner.memory.clusters[learner.memory.steps == step].tolist()) == [0, 1, 2, 3]


def test_a_budget_of_bytes_holds_files_of_so_many() -> None:
    learner, watcher = learn(tiny_settings(*THREE, "strategy=ccl", "memory.budget=6 kB"))
    sizes = torch.tensor([len(file) for file in learner.memory.files])
    held = [int(sizes[learner.memory.steps == step].sum()) for step in range(3)]
    assert 6000 - int(sizes.max()) * 3 < sum(held) <= 6000
    assert all(abs(amount - 2000) <= int(sizes.max()) for amount in held)
    assert watcher.kept[-1].num_images == len(sizes)


def test_images_that_are_larger_than_their_share_are_not_kept_and_it_is_said(tmp_path: Path) -> None:
    display, notes = listening()
    record = run(tiny_settings("strategy=ccl", "memory.budget=100B"), tmp_path / "run", display)
    told = [row for row in record.rows if row["kind"] == "memory"]
    assert [(row["step"], row["num_kept"], row["num_images"]) for row in told] == [(1, 0, 0), (2, 0, 0)]
    assert "CCL after step 1: remembers 0 of its images from 4 clusters, 0 in all" in notes


def test_an_estimate_is_that_of_the_embeddings() -> None:
    """Also for a random draw, which takes the number to know how many images to draw."""
    for strategy in ("ccl", "simple_rehearsal"):
        options = (f"strategy={strategy}", "data.images_per_class=20", "data.classes=10", "memory.clusters=estimate")
        settings = tiny_settings(*options)
        stream, learner, viewer = build_stream(settings), build_learner(settings, CPU), build_viewer(settings, CPU)
        selection, source = build_selection(settings), stream.arrivals[0]
        number = estimate_num_clusters(extract(learner.encoder, source, viewer, output="embeddings"), settings.seed, 0)
        what = remember(learner, source, viewer, 0, stream.num_clusters[0], selection)
        assert what == Remembered(number, True, 2 * number, 2 * number)
        assert 1 < number != 10


def test_a_random_draw_from_a_budget_reads_no_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccl.training.exemplar_selection.extract", None)
    _, watcher = learn(tiny_settings("strategy=simple_rehearsal", "memory.budget=6", "memory.clusters=estimate"))
    assert watcher.kept[-1] == Remembered(0, False, 3, 6)


def test_nothing_to_keep_is_nothing_to_tell() -> None:
    assert learn(tiny_settings("strategy=ccl", "memory.per_cluster=0"))[1].kept == []
    assert len(learn(tiny_settings("strategy=ccl", "memory.per_cluster=0", "memory.budget=4"))[0].memory) == 4


ORDERS = ["minred", "k_center", "herding", "principal_components"]


def chosen_by_hand(method: str, learner: Learner, source: ImageSource, settings: Settings, count: int) -> list[int]:
    """Ids in the order of choice, from the embeddings of the encoder as it is now."""
    rows = extract(learner.encoder, source, build_viewer(settings, CPU), output="embeddings")
    if method == "herding":
        return source.ids[herding(rows, count, group(rows, 4, settings.seed, 0))].tolist()
    return source.ids[getattr(memory_module, method)(rows, count)].tolist()


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("budget", [(), ("memory.budget=8",)], ids=["no limit", "budget"])
def test_a_selection_keeps_what_its_function_chooses(method: str, budget: tuple[str, ...]) -> None:
    settings = tiny_settings("strategy=simple_rehearsal", f"memory.selection={method}", *budget)
    stream, learner, viewer = build_stream(settings), build_learner(settings, CPU), build_viewer(settings, CPU)
    selection, source = build_selection(settings), stream.arrivals[0]
    remember(learner, source, viewer, 0, 4, selection)
    expected = chosen_by_hand(method, learner, source, settings, 8)  # two images of each of four classes
    assert learner.memory.ids[learner.memory.scores.argsort()].tolist() == expected
    assert (learner.memory.clusters >= 0).all() == (method == "herding")
    remember(learner, stream.arrivals[1], viewer, 1, 4, selection)
    kept = learner.memory.ids[learner.memory.steps == 0].tolist()
    assert set(kept) == set(expected[:4] if budget else expected)  # half of the memory is now the second step's
    assert len(learner.memory) == (8 if budget else 16)


@pytest.mark.parametrize("limit", ["9", "6 kB"])
def test_a_reservoir_is_one_draw_from_all_images_of_the_stream(limit: str) -> None:
    options = (*THREE, "strategy=simple_rehearsal", "memory.selection=reservoir", f"memory.budget={limit}")
    settings = tiny_settings(*options)
    learner, _ = learn(settings)
    everything = chain(build_stream(settings).arrivals)
    order = everything.ids[permutation(everything.ids, settings.seed, "reservoir")].tolist()
    held = learner.memory.ids.tolist()
    assert set(held) == set(order[: len(held)])  # whatever step they are of
    largest, held_bytes = max(map(len, learner.memory.files)), sum(map(len, learner.memory.files))
    assert len(held) == 9 if limit == "9" else 6000 - largest < held_bytes <= 6000


def test_a_reservoir_without_a_budget_draws_from_each_step() -> None:
    learner, watcher = learn(tiny_settings("strategy=simple_rehearsal", "memory.selection=reservoir"))
    assert [what.num_kept for what in watcher.kept] == [8, 8]
    assert learner.memory.scores.isnan().all()


def test_an_unknown_selection_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"memory\.selection: unknown selection 'k_centre'; did you mean 'k_center'\?"):
        tiny_settings("strategy=ccl", "memory.selection=k_centre")
