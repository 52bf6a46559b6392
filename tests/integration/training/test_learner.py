"""The learner between loop and parts: one forward, weights, schedule, what is kept."""

import math
from typing import Any

import pytest
import torch
from tiny import Watcher, learn, tiny_settings

from ccl.encoders import Embedded, Encoder, extract
from ccl.memory import group
from ccl.part import BatchContext, Contrast, Objective, Retention
from ccl.reading import build_viewer
from ccl.runs.build import build_learner, build_selection
from ccl.runs.stream_builder import build_stream
from ccl.training import Learner, NotFiniteError, remember
from ccl.views import ViewBatch

CPU = torch.device("cpu")


def second_step(*assignments: str) -> tuple[Learner, list[int]]:
    """A learner in its second step, and the sizes of the student's forwards for one batch of 12 with 4 old images."""
    learner = build_learner(tiny_settings("strategy=ccl", *assignments), CPU)
    settings, sizes = tiny_settings("strategy=ccl", *assignments), list[int]()
    source = build_stream(settings).arrivals[0]
    learner.begin_step(1, source.ids, num_new=20)
    learner.encoder.backbone.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 23])
    (batch,) = build_viewer(settings, CPU).batches(
        source, [positions], moment=(1, 0), num_views=2, plain=learner.wants_plain(len(source))
    )
    losses, context = learner.losses(batch, (1, 0))
    assert set(losses) == {"contrast", "distillation", "extra_sample_queue"}
    assert context.is_old.tolist() == [False] * 8 + [True] * 4
    assert len(context.batch.plain) == len(context.student_plain) == 4
    return learner, sizes


class Blind(Objective):
    """Learns without embeddings of whole views."""

    num_views, num_student_views = 1, 0

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        rows = student[0].unit if student else encoder.embed_none(batch.views[0].device).unit
        return Contrast(encoder.head.state_dict()["0.weight"].sum(), rows, (), rows.detach())


@pytest.mark.parametrize(("strategy", "rows"), [("simple_rehearsal", []), ("cassle", [12])])
def test_nothing_is_embedded_that_neither_the_objective_nor_a_part_asks_for(strategy: str, rows: list[int]) -> None:
    settings, sizes = tiny_settings(f"strategy={strategy}"), list[int]()
    learner = build_learner(settings, CPU)
    learner.objective = Blind()
    source = build_stream(settings).arrivals[0]
    learner.begin_step(1, source.ids, num_new=20)
    learner.encoder.backbone.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    (batch,) = build_viewer(settings, CPU).batches(source, [torch.arange(12)], num_views=learner.num_views)
    _, context = learner.losses(batch, (1, 0))
    assert (learner.num_views, sizes) == (1, rows)
    assert [len(view) for view in context.student] == rows
    assert context.contrast.query.shape == (12 if rows else 0, 8)


def test_plain_old_images_ride_in_the_student_s_one_forward() -> None:
    assert second_step()[1] == [12 + 4]
    assert second_step("objective=simclr")[1] == [2 * 12 + 4]


def test_the_total_is_weighted_from_the_second_step_on() -> None:
    learner, _ = second_step()
    losses = {"contrast": torch.tensor(2.0), "distillation": torch.tensor(3.0), "extra_sample_queue": torch.tensor(5.0)}
    assert float(learner.total(losses)) == pytest.approx(0.9 * 2 + 0.1 * 3 + 0.1 * 5)
    learner.begin_step(0, torch.arange(4), 4)
    assert float(learner.total({"contrast": torch.tensor(2.0)})) == 2.0
    finetuning = build_learner(tiny_settings("strategy=finetuning"), CPU)
    finetuning.begin_step(1, torch.arange(4), 4)
    assert float(finetuning.total({"contrast": torch.tensor(2.0)})) == 2.0


def test_the_cosine_restarts_with_every_step() -> None:
    _, watch = learn(tiny_settings("strategy=finetuning", "epochs=4", "optimizer.learning_rate=0.06"))
    one_step = [0.03 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    assert watch.rates == pytest.approx(one_step * 2)
    assert watch.rates[0] == 0.06


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    settings = tiny_settings("strategy=finetuning")
    learner, snapshots = build_learner(settings, CPU), list[dict[str, torch.Tensor]]()

    def poison() -> None:
        snapshots.append({name: value.clone() for name, value in learner.encoder.state_dict().items()})
        learner.objective.temperature = float("nan")

    with pytest.raises(NotFiniteError, match=r"'contrast' is nan in step 1, epoch 1, in the batch of images \d+"):
        learn(settings, Watcher(on_update=poison), learner=learner)
    assert len(snapshots) == 1
    parameters = dict(learner.encoder.named_parameters())
    assert all(torch.equal(value, snapshots[0][name]) for name, value in parameters.items())


def test_a_gradient_that_is_not_finite_stops_before_the_update() -> None:
    settings = tiny_settings("strategy=finetuning")
    learner = build_learner(settings, CPU)
    before = {name: value.clone() for name, value in learner.encoder.named_parameters()}
    learner.encoder.head[2].weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NotFiniteError, match=r"gradient of encoder\.head\.2\.weight is not finite in step 1"):
        learn(settings, learner=learner)
    assert all(torch.equal(value, before[name]) for name, value in learner.encoder.named_parameters())


def test_the_memory_gets_the_lowest_variance_of_each_cluster() -> None:
    settings = tiny_settings("strategy=ccl")
    learner, source = build_learner(settings, CPU), build_stream(settings).arrivals[0]
    viewer, selection = build_viewer(settings, CPU), build_selection(settings)
    remember(learner, source, viewer, 0, 3, selection)
    memory = learner.memory
    assert len(memory) == 6
    assert not torch.isnan(memory.scores).any()
    # The same selection, image by image.
    learner.encoder.eval()
    with torch.no_grad():
        views = [
            [learner.encoder(view)[0] for view in batch.views]
            for batch in viewer.batches(source, list(torch.arange(24).split(1)), moment=(0, -1), num_views=6)
        ]
    variance = torch.stack([torch.stack(rows).var(dim=0).sum() for rows in views])
    positions = [source.ids.tolist().index(image) for image in memory.ids.tolist()]
    assert memory.scores.tolist() == pytest.approx(variance[positions].tolist(), rel=1e-3)
    clusters = group(extract(learner.encoder, source, viewer, output="embeddings"), 3, settings.seed, 0)
    assert memory.clusters.tolist() == clusters[positions].tolist()
    for cluster in range(3):
        members = [p for p in range(24) if clusters[p] == cluster]
        best = sorted(members, key=lambda p: float(variance[p]))[:2]
        assert set(best) <= set(positions)


def test_every_part_of_the_state_is_in_the_state_dict() -> None:
    learner, _ = learn(tiny_settings("strategy=ccl"))
    names = set(learner.state_dict())
    for needed in (
        "encoder.head.0.weight",
        "objective.key_encoder.copy.head.0.weight",
        "objective.queue.vectors",
        "objective.queue.cursor",
        "registered_parts.distillation.teacher.copy.head.0.weight",
        "registered_parts.extra_sample_queue.queue.vectors",
    ):
        assert needed in names


class Diary(Retention):
    """A part that writes down when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []

    def begin_step(self, encoder: Encoder, step: int, ids: torch.Tensor) -> None:
        self.entries.append("begin_step")

    def loss(self, context: BatchContext) -> torch.Tensor:
        self.entries.append("loss")
        return context.contrast.loss * 0

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.entries.append(f"after_update {int(context.is_old.sum()) > 0}")

    def end_epoch(self, encoder: Encoder) -> None:
        self.entries.append("end_epoch")

    def end_step(self, encoder: Encoder) -> None:
        self.entries.append("end_step")


def test_parts_know_how_many_images_came_before_for_each_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    true_losses = Learner.losses

    def watched(self: Learner, *arguments: Any, **options: Any) -> Any:
        losses, context = true_losses(self, *arguments, **options)
        seen.append((context.moment[0], context.past_per_new))
        return losses, context

    monkeypatch.setattr(Learner, "losses", watched)
    settings = tiny_settings("strategy=simple_rehearsal", "dataset=symbols,textures,greek", "epochs=1")
    sizes = [len(arrival) for arrival in build_stream(settings).arrivals]
    learn(settings)
    before = [0, sizes[0], sizes[0] + sizes[1]]
    assert dict(seen) == {step: before[step] / size for step, size in enumerate(sizes)}


def test_parts_act_when_the_loop_calls_them() -> None:
    settings = tiny_settings("strategy=simple_rehearsal", "epochs=2", "batch_size=16")
    plain, diary = build_learner(settings, CPU), Diary()
    learner = Learner(plain.encoder, plain.objective, {"diary": diary}, {"contrast": 1.0, "diary": 1.0})
    learn(settings, learner=learner)
    # 24 images are two batches of 12; 24 + 8 images are two of 16.
    first = ["begin_step", *(["after_update False"] * 2 + ["end_epoch"]) * 2, "end_step"]
    second = ["begin_step", *(["loss", "after_update True"] * 2 + ["end_epoch"]) * 2, "end_step"]
    assert diary.entries == first + second
