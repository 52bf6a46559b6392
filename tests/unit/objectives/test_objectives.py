"""What each objective makes of a batch, and how its state moves."""

import pytest
import torch
import torch.nn.functional as F
from networks import make_encoder
from seen import images, seen_with
from torch import Tensor

from ccl.encoders import Embedded, Encoder
from ccl.losses import info_nce, instance_softmax, nt_xent
from ccl.objectives import InsDisc, MoCoV2, SimCLR
from ccl.views import ViewBatch


def batch(count: int = 8, first_id: int = 0) -> ViewBatch:
    ids = first_id + torch.arange(count)
    views = (images(count, first_id + 1), images(count, first_id + 2))
    return ViewBatch(torch.arange(count), ids, views, views[0][:0])


def small(groups: int = 1) -> Encoder:
    return make_encoder("convnet", width=4, dim=8, batch_norm_groups=groups)


def moco(encoder: Encoder, **options: bool | float) -> MoCoV2:
    return MoCoV2(encoder, MoCoV2.Options(queue_size=20, key_momentum=0.9, **options), temperature=0.1)


def unit_rows(rows: Tensor) -> Embedded:
    """Embeddings without a network; nothing looks at their features."""
    return Embedded(rows[:, :0], rows, rows)


# --- MoCo v2


def test_moco_contrasts_the_query_with_its_key_against_the_queue() -> None:
    encoder, seen = small().train(), batch()
    objective = moco(encoder)
    query = encoder(seen.views[0])
    keys = small().train()(seen.views[1])  # a twin of the key encoder, which starts as the student
    contrast = objective.contrast(small(), (unit_rows(query),), seen, (0, 0))
    assert torch.allclose(contrast.keys, keys, atol=1e-5)  # shuffled for batch norm, and put back in order
    assert torch.allclose(contrast.loss, info_nce(query, keys, objective.queue.vectors, 0.1), atol=1e-5)
    assert contrast.pairs[0][0] is query


def test_moco_s_gradient_reaches_the_student_only() -> None:
    encoder, seen = small(), batch()
    objective = moco(encoder)
    contrast = objective.contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 0))
    contrast.loss.backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert not contrast.keys.requires_grad
    assert all(parameter.grad is None for parameter in objective.key_encoder.parameters())


def test_after_an_update_the_key_encoder_follows_and_the_queue_takes_the_keys() -> None:
    encoder, seen = small(), batch()
    objective = moco(encoder)
    contrast = objective.contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 0))
    before = objective.key_encoder.copy.head[0].weight.clone()
    with torch.no_grad():
        encoder.head[0].weight.add_(1.0)
    objective.after_update(encoder, seen_with(contrast, seen))
    assert torch.allclose(objective.key_encoder.copy.head[0].weight, before + 0.1, atol=1e-5)
    assert torch.equal(objective.queue.vectors[:8], contrast.keys)
    assert objective.queue.ids[:8].tolist() == seen.ids.tolist()


@pytest.mark.parametrize(("done", "moved"), [(0.0, 0.1), (0.5, 0.06), (1.0, 0.02)])
def test_the_key_encoder_may_follow_ever_more_slowly(done: float, moved: float) -> None:
    encoder, seen = small(), batch()
    objective = moco(encoder, final_key_momentum=0.98)
    contrast = objective.contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 0))
    before = objective.key_encoder.copy.head[0].weight.clone()
    with torch.no_grad():
        encoder.head[0].weight.add_(1.0)
    objective.after_update(encoder, seen_with(contrast, seen, done))
    assert torch.allclose(objective.key_encoder.copy.head[0].weight, before + moved, atol=1e-5)


def test_keys_are_shuffled_across_the_groups_of_split_batch_norm() -> None:
    encoder, seen = small(groups=4), batch()
    unshuffled = small(groups=4).train()(seen.views[1])
    keys = moco(encoder).contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 0)).keys
    assert not torch.allclose(keys, unshuffled, atol=1e-4)  # other company, other statistics
    again = moco(encoder).contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 0)).keys
    other = moco(encoder).contrast(encoder, (encoder.embed(seen.views[0]),), seen, (0, 1)).keys
    assert torch.equal(keys, again)
    assert not torch.equal(keys, other)  # another epoch, another shuffle


def test_masking_leaves_out_the_image_s_own_keys() -> None:
    encoder, seen = small(), batch()
    masked, plain = moco(encoder, mask_same_image=True), moco(encoder)
    query = encoder(seen.views[0])
    for objective in (masked, plain):
        objective.queue.push(query.detach(), seen.ids)  # the hardest false negatives: the queries themselves
    assert (
        masked.contrast(small(), (unit_rows(query),), seen, (0, 0)).loss
        < plain.contrast(small(), (unit_rows(query),), seen, (0, 0)).loss - 0.3
    )


def test_symmetric_moco_contrasts_each_view_against_the_other_s_queue() -> None:
    encoder, seen = small().train(), batch()
    objective = moco(encoder, symmetric=True)
    assert (objective.num_student_views, moco(encoder).num_student_views) == (2, 1)
    assert not torch.equal(objective.queue.vectors, objective.first_view_queue.vectors)
    queries = [encoder(view) for view in seen.views]
    keys = [small().train()(view) for view in seen.views]  # by a twin of the key encoder
    contrast = objective.contrast(small(), tuple(unit_rows(query) for query in queries), seen, (0, 0))
    there = info_nce(queries[0], keys[1], objective.queue.vectors, 0.1)
    back = info_nce(queries[1], keys[0], objective.first_view_queue.vectors, 0.1)
    assert torch.allclose(contrast.loss, (there + back) / 2, atol=1e-5)
    assert abs(float((there - back).detach())) > 1e-2  # or the mean would not show
    assert [query is pair[0] for query, pair in zip(queries, contrast.pairs, strict=True)] == [True, True]
    assert torch.allclose(contrast.pairs[1][1], keys[0], atol=1e-5)
    # What others push a view from is what its own query was pushed from.
    assert contrast.negatives[0] is objective.queue.vectors
    assert contrast.negatives[1] is objective.first_view_queue.vectors
    objective.after_update(encoder, seen_with(contrast, seen))
    assert torch.allclose(objective.queue.vectors[:8], keys[1], atol=1e-5)
    assert torch.allclose(objective.first_view_queue.vectors[:8], keys[0], atol=1e-5)
    assert objective.first_view_queue.ids[:8].tolist() == seen.ids.tolist()


def test_moco_has_a_second_queue_only_where_it_is_symmetric() -> None:
    extra = moco(small(), symmetric=True).state_dict().keys() - moco(small()).state_dict().keys()
    assert extra == {f"first_view_queue.{name}" for name in ("vectors", "ids", "cursor")}


# --- SimCLR


def test_simclr_is_nt_xent_with_both_directions_as_pairs() -> None:
    first, second = (F.normalize(torch.randn(6, 8), dim=1).requires_grad_() for _ in range(2))
    contrast = SimCLR(temperature=0.2).contrast(small(), (unit_rows(first), unit_rows(second)), batch(6), (0, 0))
    assert torch.equal(contrast.loss, nt_xent(first, second, 0.2))
    assert contrast.pairs == ((first, second), (second, first))
    assert torch.equal(contrast.keys, second)
    assert not contrast.keys.requires_grad


# --- InsDisc


def test_insdisc_is_the_exact_softmax_over_its_bank() -> None:
    seen, query = batch(6, first_id=10), F.normalize(torch.randn(6, 8), dim=1)
    objective = InsDisc(8, temperature=0.2)
    objective.begin_step(small(), 0, torch.arange(30))
    loss = objective.contrast(small(), (unit_rows(query),), seen, (0, 0)).loss
    assert torch.allclose(loss, instance_softmax(query, objective.bank.vectors, torch.arange(10, 16), 0.2))


def test_insdisc_s_bank_moves_towards_the_embedding() -> None:
    seen, query = batch(6, first_id=10), F.normalize(torch.randn(6, 8), dim=1)
    objective = InsDisc(8, temperature=0.2)
    objective.begin_step(small(), 0, torch.arange(30))
    before = objective.bank.vectors.clone()
    objective.after_update(small(), seen_with(objective.contrast(small(), (unit_rows(query),), seen, (0, 0)), seen))
    assert torch.allclose(objective.bank.vectors[10:16], F.normalize(before[10:16] + query, dim=1), atol=1e-6)
    assert torch.equal(objective.bank.vectors[:10], before[:10])
