"""Parts that act on old images: the cross-task contrast and stored features, against the losses they are made of."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seen import Rows, encoders, plain, seen_by, value
from torch import Tensor

from ccl.encoders import Encoder
from ccl.losses import cross_task_contrast, nt_xent, osiris_distillation
from ccl.part import BatchContext
from ccl.retention import CrossTask, StoredFeatures

IS_OLD = [True, False, False, True, False]
NEW, OLD = [1, 2, 4], [0, 3]


def on_head(part: CrossTask, context: BatchContext, encoder: Encoder | None = None) -> Rows:
    """(2, N, D): both views on the second head, of another encoder's features where one is given."""
    views = context.batch.views
    features = [encoder.features(view) for view in views] if encoder else [view.features for view in context.student]
    return np.stack([plain(part.head(rows)) for rows in features])


def views_of(rows: Rows, chosen: list[int]) -> list[Tensor]:
    return [F.normalize(torch.from_numpy(view[chosen]), dim=1) for view in rows]


def cross(rows: Rows) -> Tensor:
    return cross_task_contrast(*views_of(rows, NEW), *views_of(rows, OLD), 0.5)


def test_replay_contrasts_old_images_among_themselves_beside_the_cross_task_loss() -> None:
    student, other = encoders()
    part = CrossTask(other, temperature=0.5)
    seen = seen_by(student, IS_OLD)
    rows = on_head(part, seen)
    expected = cross(rows) + nt_xent(*views_of(rows, OLD), 0.5)
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-4)


def test_distillation_finds_new_images_among_those_of_the_frozen_backbone() -> None:
    student, past = encoders()
    part = CrossTask(past, CrossTask.Options(past="distillation"), temperature=0.5)
    seen = seen_by(student, IS_OLD)
    rows, taught = on_head(part, seen), on_head(part, seen, past.eval())
    expected = cross(rows) + osiris_distillation(*views_of(rows, NEW), *views_of(taught, NEW), 0.5)
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-4)


def test_without_old_or_new_images_only_what_is_left_acts() -> None:
    student, _ = encoders()
    replay, distillation = (
        CrossTask(student, temperature=0.5),
        CrossTask(student, CrossTask.Options(past="distillation"), temperature=0.5),
    )
    assert replay.loss(seen_by(student, [False] * 3)) is None
    assert distillation.loss(seen_by(student, [True] * 3)) is None
    assert replay.loss(seen_by(student, [True] * 3)) is not None
    assert distillation.loss(seen_by(student, [False] * 3)) is not None


def test_the_head_is_copied_when_the_second_step_begins_and_learns_by_itself() -> None:
    student, other = encoders()
    part = CrossTask(other, CrossTask.Options(past="distillation"), temperature=0.5)
    nobody = torch.arange(0)
    part.begin_step(student, 0, nobody)
    assert torch.equal(part.head[0].weight, other.head[0].weight)
    part.begin_step(student, 1, nobody)
    assert torch.equal(part.head[0].weight, student.head[0].weight)
    assert torch.equal(part.frozen.copy.head[0].weight, student.head[0].weight)
    with torch.no_grad():
        part.head[0].weight.add_(1.0)
    part.begin_step(student, 2, nobody)
    torch.testing.assert_close(part.head[0].weight, student.head[0].weight + 1.0)
    loss = part.loss(seen_by(student, IS_OLD))
    loss.backward()
    assert part.head[0].weight.grad is not None
    assert student.head[0].weight.grad is None  # the encoder's own head is the objective's
    assert any(parameter.grad is not None for parameter in student.backbone.parameters())


def test_features_are_compared_with_the_stored_ones_of_the_same_image() -> None:
    student, _ = encoders()
    stored = torch.randn(2, student.num_features, generator=torch.Generator().manual_seed(5))
    seen = seen_by(student, IS_OLD, stored={"features": stored})
    part = StoredFeatures()
    expected = np.mean([((plain(view.features)[OLD] - plain(stored)) ** 2).mean() for view in seen.student])
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-5)
    unknown = stored.clone()
    unknown[0] = float("nan")
    found = part.loss(seen_by(student, IS_OLD, num_views=1, stored={"features": unknown}))
    expected = F.mse_loss(student.embed(seen.batch.views[0]).features[3], stored[1])
    assert value(found) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_without_stored_features_there_is_nothing_to_compare() -> None:
    student, _ = encoders()
    part, width = StoredFeatures(), student.num_features
    assert part.loss(seen_by(student, IS_OLD)) is None
    assert part.loss(seen_by(student, [False] * 3, stored={"features": torch.zeros(0, width)})) is None
