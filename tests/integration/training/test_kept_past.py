"""Parts that keep the past in a whole stream: what moves, what stays, and what the memory holds for them."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from breaking import quiet
from tiny import Watcher, learn, same, tiny_settings

from ccl import run
from ccl.encoders import extract
from ccl.reading import build_viewer
from ccl.runs.build import build_learner
from ccl.runs.stream_builder import build_stream
from ccl.training.checkpoint import CheckpointStore


def test_the_predictor_moves_in_the_second_step_only_and_the_frozen_copy_never() -> None:
    settings = tiny_settings("strategy=cassle")
    learner, watcher = build_learner(settings, torch.device("cpu")), Watcher()
    part = learner.parts["predictive_distillation"]
    predictors, copies, students = [], [], []

    def note() -> None:
        predictors.append({name: value.clone() for name, value in part.predictor.state_dict().items()})
        copies.append({name: value.clone() for name, value in part.teacher.copy.state_dict().items()})
        students.append({name: value.clone() for name, value in learner.encoder.state_dict().items()})

    watcher.on_update = note
    fresh = {name: value.clone() for name, value in part.predictor.state_dict().items()}
    learn(settings, watcher, learner=learner)
    assert all(same(fresh, found) for found in predictors[:4])  # two epochs of two batches
    assert len(predictors) == 8
    moved = [fresh, *predictors[4:]]
    for before, after in pairwise(moved):
        assert not torch.equal(before["first.weight"], after["first.weight"])
        assert not torch.equal(before["norm.running_mean"], after["norm.running_mean"])
    assert all(same(students[3], found) for found in copies[4:])  # the student when the second step began


@pytest.mark.parametrize(
    ("strategy", "objective", "owner"),
    [
        ("finetuning", "byol", "objective.predictor"),
        ("finetuning", "simsiam", "objective.predictor"),
        ("finetuning", "mae", "objective.decoder"),
        ("pfr", "moco_v2", "registered_parts.predictive_distillation.predictor"),
        ("predictive_rehearsal", "barlow_twins", "registered_parts.predictive_distillation.predictor"),
        ("pnr", "moco_v2", "registered_parts.pnr.predictor"),
        ("pnr", "vicreg", "registered_parts.pnr.predictor"),
        ("cla", "moco_v2", "registered_parts.alignment.aligner"),
        ("osiris", "moco_v2", "registered_parts.cross_task.head"),
    ],
)
def test_every_weight_that_a_part_owns_is_trained(strategy: str, objective: str, owner: str) -> None:
    settings = tiny_settings(f"strategy={strategy}", f"objective={objective}", "epochs=1")
    learner, watcher = build_learner(settings, torch.device("cpu")), Watcher()
    others = [name for name in learner.trained_parameters() if not name.startswith("encoder.")]
    assert others
    assert all(name.startswith(f"{owner}.") for name in others)
    met: list[dict[str, torch.Tensor]] = []
    watcher.on_update = lambda: met.append(
        {name: value.detach().clone() for name, value in learner.trained_parameters().items()}
    )
    learn(settings, watcher, learner=learner)
    assert [name for name in others if torch.equal(met[-2][name], met[-1][name])] == []


@pytest.mark.parametrize(
    ("objective", "weight"), [("barlow_twins", 0.02), ("vicreg", 5.0), ("byol", 1.0), ("mae", 1.0)]
)
@pytest.mark.parametrize(("strategy", "part"), [("cassle", "predictive_distillation"), ("pnr", "pnr")])
def test_the_distance_to_the_past_is_scaled_as_the_objective_is(
    strategy: str, part: str, objective: str, weight: float
) -> None:
    """With the published objective the published weight; with one scaled for plain SGD, the same proportion."""
    settings = tiny_settings(f"strategy={strategy}", f"objective={objective}")
    assert build_learner(settings, torch.device("cpu")).parts[part].weight == weight
    if objective == "vicreg":
        published = tiny_settings(f"strategy={strategy}", "objective=vicreg", "vicreg.invariance=25")
        assert build_learner(published, torch.device("cpu")).parts[part].weight == 25.0


def test_the_memory_keeps_features_of_the_encoder_at_the_end_of_an_image_s_step() -> None:
    settings = tiny_settings("strategy=der", "memory.budget=9", "dataset=symbols,textures,greek", "epochs=1")
    stream, watcher = build_stream(settings), Watcher()
    learner = build_learner(settings, torch.device("cpu"))
    expected: dict[int, list[float]] = {}
    real = learner.end_step

    def end_step() -> None:
        real()
        source = stream.arrivals[learner.step]
        features = extract(learner.encoder, source, build_viewer(settings, torch.device("cpu")))
        expected.update(zip(source.ids.tolist(), features.tolist(), strict=True))

    learner.end_step = end_step  # type: ignore[method-assign]
    learn(settings, watcher, stream=stream, learner=learner)
    memory = learner.memory
    assert len(memory) == 9
    assert sorted(set(memory.steps.tolist())) == [0, 1, 2]
    for number, image in enumerate(memory.ids.tolist()):
        torch.testing.assert_close(memory.vectors["features"][number], torch.tensor(expected[image]))


def test_stored_vectors_are_in_a_checkpoint_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tiny_settings("strategy=cla", "alignment.target=stored", "epochs=1"), folder, quiet())
    checkpoint = CheckpointStore(folder / "checkpoints").newest()
    vectors, ids = checkpoint.tensors["memory/vectors.embeddings"], checkpoint.tensors["memory/ids"]
    assert vectors.shape == (len(ids), 8)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(ids)))


def test_only_parts_that_store_vectors_make_the_memory_larger() -> None:
    learner, _ = learn(tiny_settings("strategy=cla", "epochs=1"))
    assert learner.memory.vectors == {}
    assert len(learner.memory) == 16


def test_a_mixed_batch_has_as_many_images_as_a_plain_one() -> None:
    settings = tiny_settings("strategy=lump")
    learner, sizes = build_learner(settings, torch.device("cpu")), []
    real = learner.losses

    def noting(*arguments: object) -> object:
        losses, context = real(*arguments)  # type: ignore[arg-type]
        sizes.append((len(context.batch.ids), len(context.contrast.query), int(context.is_old.sum())))
        return losses, context

    learner.losses = noting  # type: ignore[method-assign, assignment]
    learn(settings, learner=learner)
    assert sizes[:4] == [(12, 12, 0)] * 4
    assert [size for size, _, _ in sizes[4:]] == [11, 11, 10] * 2  # 24 new and 8 old ones, as pooled
    assert all(size == seen and num_old == 0 for size, seen, num_old in sizes)
