"""Parts that predict the past: predictive distillation, alignment and past negatives, against plain loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from seen import Rows, cosine, encoders, plain, seen_by, value
from torch import Tensor

from ccl.encoders import Encoder, split_batch_norm
from ccl.losses import barlow_twins, cross_info_nce, info_nce, nt_xent, pnr_nt_xent
from ccl.memory import FeatureQueue
from ccl.objectives import MoCoV2
from ccl.part import BatchContext
from ccl.retention import Alignment, PastNegatives, PredictiveDistillation
from ccl.retention.past import Predictor


def predicted(predictor: Predictor, rows: Rows) -> Rows:
    """Linear, batch norm, ReLU, linear, written out."""
    first, last, norm = predictor.first, predictor.last, predictor.norm
    wide = rows @ plain(first.weight).T + plain(first.bias)
    wide = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + norm.eps)
    return np.asarray(np.maximum(wide, 0.0) @ plain(last.weight).T + plain(last.bias))


def tensor(rows: Rows) -> Tensor:
    return torch.from_numpy(rows)


def mean_cosine(first: Rows, second: Rows) -> float:
    return float(np.mean([cosine(mine, theirs) for mine, theirs in zip(first, second, strict=True)]))


def squared(first: Rows, second: Rows) -> float:
    return float(((first - second) ** 2).mean())


def contrast_of(query: Rows, key: Rows, negatives: Rows, temperature: float) -> float:
    units = (torch.nn.functional.normalize(tensor(rows), dim=1) for rows in (query, key, negatives))
    return float(info_nce(*units, temperature))


def barlow(first: Rows, second: Rows) -> float:
    return float(barlow_twins(tensor(first), tensor(second)))


def both_views(context: BatchContext, past: Encoder, kind: str) -> tuple[list[Rows], list[Rows]]:
    past.eval()
    present = [plain(getattr(view, kind)) for view in context.student]
    views = context.batch.views[: len(context.student)]
    return present, [plain(getattr(past.embed(view), kind)) for view in views]


def distilling(past: Encoder, objective_distance: Any = "", seed: int = 0, **options: Any) -> PredictiveDistillation:
    asked = PredictiveDistillation.Options(**options)
    return PredictiveDistillation(past, asked, temperature=0.2, objective_distance=objective_distance, seed=seed)


def pushing(past: Encoder, objective_distance: Any = "info_nce", **options: Any) -> PastNegatives:
    asked = PastNegatives.Options(hidden=6, **options)
    return PastNegatives(past, asked, temperature=0.5, objective_distance=objective_distance)


# --- Predictive distillation


@pytest.mark.parametrize("num_views", [1, 2])
@pytest.mark.parametrize("which", ["all", "new", "old"])
@pytest.mark.parametrize("distance", ["cosine", "info_nce", "barlow", "mse"])
def test_the_distance_to_the_past_is_that_of_plain_loops(distance: Any, which: Any, num_views: int) -> None:
    student, past = encoders()
    part = distilling(past, distance=distance, images=which, hidden=6)
    seen = seen_by(student, [True, False, False, True, True], num_views)
    chosen = {"all": np.arange(5), "new": np.array([1, 2]), "old": np.array([0, 3, 4])}[which]
    rows, targets = both_views(seen, past, "unit" if distance in ("cosine", "info_nce") else "projection")
    guesses = [predicted(part.predictor, view)[chosen] for view in rows]
    taught = [view[chosen] for view in targets]
    pairs = list(zip(guesses, taught, strict=True))
    expected = {
        "cosine": np.mean([2 - 2 * mean_cosine(*pair) for pair in pairs]),
        "info_nce": float(cross_info_nce(tensor(np.concatenate(guesses)), tensor(np.concatenate(taught)), 0.2)),
        "barlow": np.mean([barlow(*pair) for pair in pairs]),
        "mse": 25 * np.mean([squared(*pair) for pair in pairs]),
    }[distance]
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-4)


def test_of_features_it_is_the_cosine_whatever_the_objective() -> None:
    student, past = encoders()
    part = distilling(past, objective_distance="info_nce", space="features", hidden=6)
    seen = seen_by(student, [False] * 4)
    rows, targets = both_views(seen, past, "features")
    cosines = [mean_cosine(predicted(part.predictor, r), t) for r, t in zip(rows, targets, strict=True)]
    assert value(part.loss(seen)) == pytest.approx(2 - 2 * float(np.mean(cosines)), rel=1e-5)


@pytest.mark.parametrize(
    ("of_objective", "asked", "expected"),
    [("info_nce", None, "info_nce"), ("barlow", None, "barlow"), ("", None, "cosine"), ("barlow", "mse", "mse")],
)
def test_the_objective_s_own_distance_is_taken(of_objective: str, asked: Any, expected: str) -> None:
    part = distilling(encoders()[0], objective_distance=of_objective, distance=asked)
    assert part.distance == expected


@pytest.mark.parametrize("make", [PredictiveDistillation, PastNegatives])
@pytest.mark.parametrize(
    ("distance", "weight", "published"), [("barlow", 0.02, 0.1), ("mse", 5.0, 25.0), ("cosine", None, 1.0)]
)
def test_a_distance_is_weighed_as_the_objective_weighs_its_own(
    make: Any, distance: Any, weight: float | None, published: float
) -> None:
    student, past = encoders()
    seen = seen_by(student, [False] * 4)
    losses = []
    for asked in (weight, None):
        torch.manual_seed(0)  # the predictor's weights
        part = make(past, temperature=0.2, objective_distance=distance, objective_weight=asked)
        losses.append(value(part.loss(seen)))
    assert losses[0] / losses[1] == pytest.approx((weight or published) / published, rel=1e-5)


def test_a_distance_of_another_kind_than_the_objective_s_has_its_published_weight() -> None:
    options: Any = {"temperature": 0.2, "objective_distance": "mse", "objective_weight": 5.0}
    weights = [
        PredictiveDistillation(encoders()[0], PredictiveDistillation.Options(distance=name), **options).weight
        for name in ("barlow", "mse")
    ]
    assert weights == [0.1, 5.0]


def test_fewer_than_two_chosen_images_have_no_loss() -> None:
    student, past = encoders()
    part = distilling(past, images="old", hidden=6)
    assert part.loss(seen_by(student, [True, False, False])) is None
    assert part.loss(seen_by(student, [True, False, True])) is not None


def test_the_copy_is_taken_when_a_step_begins_and_learns_nothing() -> None:
    student, past = encoders()
    part = distilling(past, hidden=6)
    part.begin_step(student, 1, torch.arange(0))
    part.train()
    before = {name: value.clone() for name, value in part.teacher.state_dict().items()}
    seen = seen_by(student, [False] * 4)
    loss = part.loss(seen)
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in part.teacher.state_dict().items())
    assert all(torch.equal(value, before[f"copy.{name}"]) for name, value in weights_of(student).items())
    assert not any(parameter.requires_grad for parameter in part.teacher.parameters())
    assert all(parameter.grad is not None for parameter in part.predictor.parameters())
    assert any(float(p.grad.abs().sum()) > 0 for p in student.backbone.parameters() if p.grad is not None)


def weights_of(encoder: Encoder) -> dict[str, Tensor]:
    """Parameters only: the student's own batch statistics move in its forward."""
    return {name: value.data for name, value in encoder.named_parameters()}


def test_a_restarted_predictor_depends_on_seed_and_step_only() -> None:
    student, _ = encoders()

    def weights(how: Any, seed: int, steps: list[int]) -> Tensor:
        part = distilling(student, seed=seed, hidden=6, predictor=how)
        with torch.no_grad():
            part.predictor.first.weight.fill_(7.0)  # whatever it has come to
        for step in steps:
            part.begin_step(student, step, torch.arange(0))
        return part.predictor.first.weight.detach()

    assert (weights("keep", 0, [0, 1, 2]) == 7.0).all()
    assert torch.equal(weights("restart", 0, [0, 1, 2]), weights("restart", 0, [2]))
    assert not torch.equal(weights("restart", 0, [2]), weights("restart", 0, [1]))
    assert not torch.equal(weights("restart", 0, [2]), weights("restart", 1, [2]))
    assert weights("restart", 0, [2]).abs().max() < 1.0


@pytest.mark.parametrize(("past_per_new", "factor"), [(0.0, 1.0), (0.25, 0.25), (5.0, 5.0)])
def test_a_relative_loss_weighs_by_the_images_of_the_past_for_each_new_one(past_per_new: float, factor: float) -> None:
    student, past = encoders()
    seen = seen_by(student, [False] * 4, past_per_new=past_per_new)
    losses = []
    for relative in (False, True):
        part = distilling(past, hidden=6, predictor="restart", relative=relative)
        part.begin_step(past, 1, torch.arange(0))
        losses.append(value(part.loss(seen)))
    assert losses[1] == pytest.approx(factor * losses[0])


def test_a_predictor_can_begin_each_step_as_the_identity_and_learns_from_there() -> None:
    student, _ = encoders()
    part = distilling(student, seed=0, hidden=6, predictor="identity")
    rows = torch.randn(5, student.dim, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(part.predictor.parameters(), 0.5)
    for step in (0, 1, 2):
        part.begin_step(student, step, torch.arange(0))
        assert torch.equal(part.predictor(rows), rows)
        for _ in range(2):  # the layers before a last one of zeros have a gradient from the second update on
            before = {name: value.clone() for name, value in part.predictor.named_parameters()}
            optimizer.zero_grad()
            torch.autograd.backward(part.predictor(rows).square().mean())
            optimizer.step()
        now = dict(part.predictor.named_parameters())
        # A bias before batch norm changes nothing, and has no gradient but rounding.
        assert {name for name in now if not torch.allclose(now[name], before[name])} == now.keys() - {"first.bias"}
        assert not torch.allclose(part.predictor(rows), rows)


def test_a_batch_of_one_row_to_a_group_uses_running_statistics() -> None:
    predictor = split_batch_norm(Predictor(8, 6), 4)
    predictor.norm.running_mean.fill_(0.5)
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    found = predictor(rows)
    predictor.eval()
    torch.testing.assert_close(found, predictor(rows))
    predictor.train()
    assert not torch.allclose(predictor(torch.cat([rows, rows + 1]))[:4], found)


# --- Alignment


@pytest.mark.parametrize(("which", "chosen"), [("old", [0, 2]), ("all", [0, 1, 2, 3])])
def test_alignment_is_one_less_the_cosine_to_the_average_s_embedding(which: Any, chosen: list[int]) -> None:
    student, past = encoders()
    part = Alignment(past, Alignment.Options(momentum=0.9, hidden=6, images=which))
    seen = seen_by(student, [True, False, True, False])
    rows, targets = both_views(seen, past, "unit")
    cosines = [mean_cosine(predicted(part.aligner, r)[chosen], t[chosen]) for r, t in zip(rows, targets, strict=True)]
    assert value(part.loss(seen)) == pytest.approx(1 - float(np.mean(cosines)), rel=1e-4)


def test_the_average_follows_every_update_from_the_first_step_on_and_never_restarts() -> None:
    student, past = encoders()
    part = Alignment(past, Alignment.Options(momentum=0.75))
    part.begin_step(student, 0, torch.arange(0))
    start = student.head[0].weight.detach().clone()
    for step in range(3):
        if step:
            part.begin_step(student, step, torch.arange(0))
        with torch.no_grad():
            student.head[0].weight.copy_(start + step + 1)
        part.after_update(student, seen_by(student, [False] * 4))
    expected = start + 0.25 * (3 + 0.75 * 2 + 0.75**2 * 1)
    torch.testing.assert_close(part.average.copy.head[0].weight, expected)


def test_stored_embeddings_are_aimed_at_where_there_are_some() -> None:
    student, _ = encoders()
    part = Alignment(student, Alignment.Options(target="stored", hidden=6))
    assert (part.stores, part.average) == ({"embeddings"}, None)
    stored = torch.randn(3, 8, generator=torch.Generator().manual_seed(5))
    stored[1] = float("nan")  # kept before anyone asked for vectors
    seen = seen_by(student, [True, False, True, True], stored={"embeddings": stored})
    cosines = []
    for view in seen.student:
        guess = predicted(part.aligner, plain(view.unit))
        cosines += [cosine(guess[0], plain(stored[0])), cosine(guess[3], plain(stored[2]))]
    assert value(part.loss(seen)) == pytest.approx(1 - float(np.mean(cosines)), rel=1e-4)
    assert part.loss(seen_by(student, [True, False])) is None
    nobody = {"embeddings": torch.full((1, 8), float("nan"))}
    assert part.loss(seen_by(student, [True, False], stored=nobody)) is None


# --- Past negatives


@pytest.mark.parametrize("is_masked", [False, True])
def test_with_a_queue_the_contrast_and_the_distillation_are_pushed_from_both_queues(is_masked: bool) -> None:
    student, past = encoders()
    part = pushing(past, queue_size=5)
    own = FeatureQueue(4, 8, seed=9).vectors
    ignore = (torch.tensor([[True, False, False, False], [False] * 4, [False] * 4]),) if is_masked else ()
    seen = seen_by(student, [False] * 3, num_views=1, contrast={"negatives": (own,), "ignore": ignore})
    ((query, keys),) = seen.contrast.pairs
    rows, targets = both_views(seen, past, "unit")
    q, k, guess = plain(query), plain(keys), predicted(part.predictor, rows[0])
    total = 0.0
    for row in range(3):
        kept = plain(own)[1:] if is_masked and row == 0 else plain(own)
        both, this = np.concatenate([kept, plain(part.queue.vectors)]), slice(row, row + 1)
        total += contrast_of(q[this], k[this], both, 0.5) + contrast_of(guess[this], targets[0][this], both, 0.5)
        total -= contrast_of(q[this], k[this], kept, 0.5)  # the objective's own loss, which is added with weight 1
    assert value(part.loss(seen)) == pytest.approx(total / 3, rel=1e-4)


@pytest.mark.parametrize("is_masked", [False, True])
def test_with_symmetric_moco_the_sum_with_its_loss_is_the_published_one(is_masked: bool) -> None:
    """PNR: ½ Σ over views of InfoNCE(q, k, Q ∪ Q⁻) + InfoNCE(n(h q), z⁻, Q ∪ Q⁻), with the Q that the view has."""
    student, past = encoders()
    moco = MoCoV2(
        student,
        MoCoV2.Options(queue_size=4, key_momentum=0.9, symmetric=True, mask_same_image=is_masked),
        temperature=0.5,
    )
    moco.first_view_queue.ids[1] = 51  # the second view of the second image must not meet this row, if so asked
    part = pushing(past, queue_size=5)
    seen = seen_by(student, [False] * 3)
    contrast = moco.contrast(student, seen.student, seen.batch, (1, 0))
    rows, targets = both_views(seen, past, "unit")
    total = 0.0
    for view, queue in enumerate((moco.queue, moco.first_view_queue)):
        guess, (query, keys) = predicted(part.predictor, rows[view]), contrast.pairs[view]
        for row in range(3):
            kept = [0, 2, 3] if is_masked and (view, row) == (1, 1) else [0, 1, 2, 3]
            both = np.concatenate([plain(queue.vectors)[kept], plain(part.queue.vectors)])
            this = slice(row, row + 1)
            total += contrast_of(plain(query)[this], plain(keys)[this], both, 0.5)
            total += contrast_of(guess[this], targets[view][this], both, 0.5)
    found = value(contrast.loss) + value(part.loss(replace(seen, contrast=contrast)))
    assert found == pytest.approx(total / 6, rel=1e-4)


def test_the_queue_takes_the_copy_s_embeddings() -> None:
    student, past = encoders()
    part = pushing(past, queue_size=5)
    seen = seen_by(student, [False] * 3, num_views=1, contrast={"negatives": (FeatureQueue(4, 8).vectors,)})
    start = part.queue.vectors.clone()
    part.after_update(student, seen)  # a first step has no loss and so no keys
    assert torch.equal(part.queue.vectors, start)
    part.loss(seen)
    part.after_update(student, seen)
    torch.testing.assert_close(part.queue.vectors[:3], past.eval()(seen.batch.views[0]))
    assert torch.equal(part.queue.vectors[3:], start[3:])
    assert part.queue.ids.tolist() == [50, 51, 52, -1, -1]


def test_with_negatives_in_the_batch_the_past_s_rows_join_them() -> None:
    student, past = encoders()
    part = pushing(past)
    seen = seen_by(student, [False] * 3)
    rows, targets = both_views(seen, past, "unit")
    guesses = [predicted(part.predictor, view) for view in rows]
    present, guess, old = ([tensor(view) for view in side] for side in (rows, guesses, targets))
    expected = pnr_nt_xent(*present, *guess, *old, 0.5) - nt_xent(*present, 0.5)  # less SimCLR's own loss
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("distance", ["cosine", "barlow", "mse"])
def test_without_negatives_the_other_view_s_past_is_pushed_away(distance: str) -> None:
    student, past = encoders()
    part = pushing(past, objective_distance=distance)
    assert (part.queue, part.num_student_views) == (None, 2)
    seen = seen_by(student, [False] * 4)
    rows, targets = both_views(seen, past, "unit" if distance == "cosine" else "projection")
    first, second = (predicted(part.predictor, view) for view in rows)
    own = [(first, targets[0]), (second, targets[1])]
    crossed = [(first, targets[1]), (second, targets[0])]
    pairs = list(zip(own, crossed, strict=True))
    expected = {
        "cosine": sum((2 - 2 * mean_cosine(*o)) / 2 - 0.25 * (2 - 2 * mean_cosine(*c)) for o, c in pairs),
        "barlow": sum(barlow(*o) / 2 + mean_cosine(*c) / 2 for o, c in pairs),
        "mse": sum(25 * squared(*o) / 2 - 23 * squared(*c) / 2 for o, c in pairs),
    }[distance]
    assert value(part.loss(seen)) == pytest.approx(float(expected), rel=1e-4)
