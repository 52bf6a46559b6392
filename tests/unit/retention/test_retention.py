"""The parts that keep the past: when they act, on which images, and what reaches whom."""

import torch
import torch.nn.functional as F
from networks import make_encoder
from torch import Tensor

from ccl.encoders import Embedded, Encoder
from ccl.losses import info_nce, similarity_distillation
from ccl.part import BatchContext, Contrast
from ccl.retention import ExtraSampleQueue, TeacherDistillation
from ccl.views import ViewBatch


def unit(*shape: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=1)


def context(is_old: list[bool], has_old_images: bool = True, both_ways: bool = False) -> BatchContext:
    old, count = torch.tensor(is_old), len(is_old)
    images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    plain = torch.randn(int(old.sum()), 3, 16, 16, generator=torch.Generator().manual_seed(4))
    query, keys = unit(count, 8, seed=0).requires_grad_(), unit(count, 8, seed=1)
    pairs = ((query, keys), (keys, query)) if both_ways else ((query, keys),)
    contrast = Contrast(torch.zeros(()), query, pairs, keys)
    batch = ViewBatch(torch.arange(count), 50 + torch.arange(count), (images,), plain)
    rows = unit(int(old.sum()), 8, seed=2).requires_grad_()
    student_plain = Embedded(torch.zeros(len(rows), 3), rows, rows)
    return BatchContext(
        batch=batch,
        is_old=old,
        has_old_images=has_old_images,
        moment=(1, 0),
        contrast=contrast,
        student_plain=student_plain,
    )


def small() -> Encoder:
    return make_encoder("convnet", width=4, dim=8)


# --- Extra sample queue


def test_every_query_is_contrasted_against_the_queue() -> None:
    part, seen = ExtraSampleQueue(8, ExtraSampleQueue.Options(size=5), temperature=0.1), context([True, False, False])
    expected = info_nce(seen.contrast.query, seen.contrast.keys, part.queue.vectors, 0.1)
    loss = part.loss(seen)
    assert torch.allclose(loss, expected)
    loss.backward()
    assert (seen.contrast.query.grad.norm(dim=1) > 0).all()  # new images are pushed away as well


def test_two_pairs_count_half_each() -> None:
    part, seen = (
        ExtraSampleQueue(8, ExtraSampleQueue.Options(size=5), temperature=0.1),
        context([True, False, True], both_ways=True),
    )
    halves = [info_nce(query, key, part.queue.vectors, 0.1) for query, key in seen.contrast.pairs]
    assert torch.allclose(part.loss(seen), sum(halves) / 2)


def test_the_queue_takes_old_keys_only_and_in_the_first_step_all() -> None:
    part, seen = (
        ExtraSampleQueue(8, ExtraSampleQueue.Options(size=4), temperature=0.1),
        context([True, False, True, False]),
    )
    part.after_update(small(), seen)
    assert part.queue.ids.tolist() == [50, 52, -1, -1]
    assert torch.equal(part.queue.vectors[:2], seen.contrast.keys[[0, 2]])
    fresh = ExtraSampleQueue(8, ExtraSampleQueue.Options(size=4), temperature=0.1)
    fresh.after_update(small(), context([False] * 6, has_old_images=False))
    assert sorted(fresh.queue.ids.tolist()) == [52, 53, 54, 55]  # the latest keys of step 1 are its first fill


# --- Distillation


def distillation() -> tuple[TeacherDistillation, torch.nn.Module]:
    encoder = make_encoder("convnet", width=4, dim=8)
    options = TeacherDistillation.Options(student_temperature=0.07, teacher_temperature=0.04)
    return TeacherDistillation(encoder, options, temperature=0.2), encoder


def test_the_loss_compares_plain_rows_with_view_columns_of_old_images() -> None:
    (part, encoder), seen = distillation(), context([True, False, True, True])
    encoder.eval()
    taught = [encoder(images) for images in (seen.batch.plain, seen.batch.views[0][seen.is_old])]
    student = (seen.student_plain.unit, seen.contrast.query[seen.is_old])
    expected = similarity_distillation(*student, *taught, 0.07, 0.04)
    assert torch.allclose(part.loss(seen), expected, atol=1e-5)


def test_gradients_reach_the_old_rows_of_the_student_only() -> None:
    (part, _), seen = distillation(), context([True, False, True, True])
    loss = part.loss(seen)
    loss.backward()
    assert (seen.contrast.query.grad.norm(dim=1) > 0).tolist() == [True, False, True, True]
    assert seen.student_plain.unit.grad is not None
    assert all(parameter.grad is None for parameter in part.teacher.parameters())


def test_fewer_than_two_old_images_have_nothing_to_say() -> None:
    part, _ = distillation()
    assert part.loss(context([False, False])) is None
    assert part.loss(context([True, False])) is None


def test_the_teacher_restarts_with_a_step_and_follows_once_an_epoch() -> None:
    part, encoder = distillation()
    with torch.no_grad():
        for value in encoder.state_dict().values():
            value.add_(1)
    part.begin_step(encoder, 1, torch.arange(2))
    taught = part.teacher.copy.state_dict()
    assert all(torch.equal(taught[name], value) for name, value in encoder.state_dict().items())
    before = taught["head.0.weight"].clone()
    with torch.no_grad():
        encoder.head[0].weight.add_(1.0)
    part.after_update(encoder, context([True, True]))
    assert torch.equal(part.teacher.copy.state_dict()["head.0.weight"], before)
    part.end_epoch(encoder)
    assert torch.allclose(part.teacher.copy.state_dict()["head.0.weight"], before + 0.004, atol=1e-5)
