"""Losses between present and past embeddings: CaSSLe, PNR, Osiris; against loops, closed forms and slopes."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ccl.losses import cross_info_nce, cross_task_contrast, info_nce, osiris_distillation, pnr_nt_xent


def rows(*shape: int, seed: int = 0) -> Tensor:
    """Of all lengths: each of these losses normalises."""
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weight(a: Tensor, b: Tensor, temperature: float) -> float:
    """exp(cos / τ), number by number."""
    x, y = a.tolist(), b.tolist()
    cosine = sum(p * q for p, q in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y))
    return math.exp(cosine / temperature)


# Loss, how many tensors it takes, and which of them no gradient may reach.
CASES = [(cross_info_nce, 2, {1}), (cross_task_contrast, 4, set()), (osiris_distillation, 4, {2, 3})]
CASES += [(pnr_nt_xent, 6, {4, 5})]


@pytest.mark.parametrize(("loss", "count", "targets"), CASES)
def test_only_targets_have_no_gradient(loss: Callable[..., Tensor], count: int, targets: set[int]) -> None:
    parts = [rows(4, 5, seed=seed).requires_grad_() for seed in range(count)]
    value = loss(*parts, 0.5)
    value.backward()
    assert (value.dtype, value.shape) == (torch.float32, ())
    assert {number for number, part in enumerate(parts) if part.grad is None} == targets
    assert all(torch.isfinite(part.grad).all() and part.grad.any() for part in parts if part.grad is not None)


@pytest.mark.parametrize(("loss", "count", "targets"), CASES)
def test_the_gradient_is_the_slope(loss: Callable[..., Tensor], count: int, targets: set[int]) -> None:
    # Differences of a float32 loss: wide steps, wide tolerance.
    parts = [rows(3, 4, seed=seed).requires_grad_(seed not in targets) for seed in range(count)]
    assert torch.autograd.gradcheck(lambda *x: loss(*x, 0.5), parts, eps=1e-3, atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize(("loss", "count", "targets"), CASES)
def test_lengths_a_rotation_and_the_order_of_images_do_not_matter(
    loss: Callable[..., Tensor], count: int, targets: set[int]
) -> None:
    parts = [rows(4, 5, seed=seed) for seed in range(count)]
    value = float(loss(*parts, 0.2))
    turn, order = torch.linalg.qr(rows(5, 5, seed=9)).Q, torch.tensor([2, 0, 3, 1])
    assert float(loss(*(part * (2.0 + number) for number, part in enumerate(parts)), 0.2)) == pytest.approx(value, 1e-4)
    assert float(loss(*(part @ turn for part in parts), 0.2)) == pytest.approx(value, rel=1e-4)
    assert float(loss(*(part[order] for part in parts), 0.2)) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(("loss", "count", "targets"), CASES)
def test_half_precision_and_one_image(loss: Callable[..., Tensor], count: int, targets: set[int]) -> None:
    parts = [rows(1, 5, seed=seed).to(torch.bfloat16).requires_grad_() for seed in range(count)]
    value = loss(*parts, 0.2)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value)
    assert all(torch.isfinite(part.grad).all() for part in parts if part.grad is not None)


# --- CaSSLe


def test_cross_info_nce_is_cassle_s_formula() -> None:
    predicted, target, temperature = rows(6, 5), rows(6, 5, seed=1), 0.2
    total = 0.0
    for i in range(6):
        own = weight(predicted[i], target[i], temperature)
        total -= math.log(own / sum(weight(predicted[i], target[k], temperature) for k in range(6)))
        total -= math.log(own / sum(weight(target[i], predicted[k], temperature) for k in range(6)))
    assert float(cross_info_nce(predicted, target, temperature)) == pytest.approx(total / 12, rel=1e-5)
    assert float(cross_info_nce(target, predicted, temperature)) == pytest.approx(total / 12, rel=1e-5)


def test_cross_info_nce_has_its_closed_forms() -> None:
    same = rows(1, 5).expand(8, 5)
    assert float(cross_info_nce(same, same, 0.1)) == pytest.approx(math.log(8), rel=1e-5)
    assert float(cross_info_nce(rows(1, 5), rows(1, 5, seed=1), 0.1)) == 0  # nothing to confuse it with
    apart = math.log(1 + 3 * math.exp(-1 / 0.5))  # four orthogonal rows, each its own target
    assert float(cross_info_nce(torch.eye(4), torch.eye(4), 0.5)) == pytest.approx(apart, rel=1e-5)


# --- PNR


def pnr_by_hand(present: Tensor, predicted: Tensor, old: Tensor, temperature: float) -> float:
    """Rows n and n + N are the views of one image."""
    num = len(present)
    total = 0.0
    for i in range(num):
        partner = (i + num // 2) % num
        others = [k for k in range(num) if k != i]
        below = sum(weight(present[i], present[k], temperature) for k in others)
        below += sum(weight(present[i], old[k], temperature) for k in others)
        total -= math.log(weight(present[i], present[partner], temperature) / below)
        below = sum(weight(predicted[i], old[k], temperature) for k in others)  # without the positive
        below += sum(weight(predicted[i], present[k], temperature) for k in others)
        total -= math.log(weight(predicted[i], old[i], temperature) / below)
    return total / num


@pytest.mark.parametrize(("num", "temperature"), [(1, 0.2), (4, 0.2), (3, 0.7)])
def test_pnr_is_its_formula(num: int, temperature: float) -> None:
    parts = [rows(num, 5, seed=seed) for seed in range(6)]
    stacked = [torch.cat(parts[number : number + 2]) for number in (0, 2, 4)]
    assert float(pnr_nt_xent(*parts, temperature)) == pytest.approx(pnr_by_hand(*stacked, temperature), rel=1e-5)


def test_pnr_has_its_closed_form_and_is_symmetric_in_the_views() -> None:
    same = rows(1, 5).expand(4, 5)  # 7 others among the present and 7 among the past
    assert float(pnr_nt_xent(*[same] * 6, 0.1)) == pytest.approx(2 * math.log(14), rel=1e-5)
    parts = [rows(4, 5, seed=seed) for seed in range(6)]
    swapped = [parts[number] for number in (1, 0, 3, 2, 5, 4)]
    assert float(pnr_nt_xent(*parts, 0.2)) == pytest.approx(float(pnr_nt_xent(*swapped, 0.2)), rel=1e-5)


# --- Osiris


@pytest.mark.parametrize(("num_new", "num_old"), [(4, 3), (2, 5), (1, 1)])
def test_cross_task_contrast_is_osiris_formula(num_new: int, num_old: int) -> None:
    new, old = rows(2, num_new, 5), rows(2, num_old, 5, seed=1)
    sides = []
    for mine, theirs in ((new, old), (old, new)):
        losses = []
        for image in range(mine.shape[1]):
            for view in (0, 1):
                anchor = mine[view, image]
                own = weight(anchor, mine[1 - view, image], 0.3)
                others = sum(weight(anchor, other, 0.3) for other in theirs.flatten(0, 1))
                losses.append(-math.log(own / (own + others)))
        sides.append(sum(losses) / len(losses))
    assert float(cross_task_contrast(*new, *old, 0.3)) == pytest.approx(sum(sides) / 2, rel=1e-5)
    assert float(cross_task_contrast(*old, *new, 0.3)) == pytest.approx(sum(sides) / 2, rel=1e-5)


def test_cross_task_contrast_has_its_closed_form() -> None:
    same = rows(1, 5)
    new, old = same.expand(4, 5), same.expand(3, 5)
    expected = (math.log(1 + 6) + math.log(1 + 8)) / 2
    assert float(cross_task_contrast(new, new, old, old, 0.1)) == pytest.approx(expected, rel=1e-5)


def test_cross_task_contrast_leaves_images_of_one_side_alone() -> None:
    # Old images are orthogonal to all new ones: how new images lie to each other changes nothing.
    first = torch.cat([rows(4, 3), torch.zeros(4, 3, dtype=torch.float64)], dim=1)
    alike = first[:1].expand(4, 6)
    old = torch.cat([torch.zeros(3, 3, dtype=torch.float64), rows(3, 3, seed=1)], dim=1)
    spread, together = (cross_task_contrast(new, new, old, old, 0.1) for new in (first, alike))
    assert torch.allclose(spread, together)


def test_osiris_distillation_is_its_formula() -> None:
    student, teacher, temperature = rows(2, 4, 5), rows(2, 4, 5, seed=1), 0.3
    total = 0.0
    for source, other in ((student, teacher), (teacher, student)):
        for view in (0, 1):
            for image in range(4):
                anchor = source[view, image]
                own = weight(anchor, other[view, image], temperature)
                negatives = sum(
                    weight(anchor, other[u, k], temperature) for u in (0, 1) for k in range(4) if k != image
                )
                total -= math.log(own / (own + negatives)) / 8
    assert float(osiris_distillation(*student, *teacher, temperature)) == pytest.approx(total / 2, rel=1e-5)


def test_osiris_distillation_has_its_closed_forms() -> None:
    same = rows(1, 5).expand(4, 5)
    assert float(osiris_distillation(same, same, same, same, 0.1)) == pytest.approx(math.log(1 + 6), rel=1e-5)
    one = [rows(1, 5, seed=seed) for seed in range(4)]
    assert float(osiris_distillation(*one, 0.1)) == 0  # both views of one image: no negative is left


def test_osiris_teacher_head_is_trained_on_request_only() -> None:
    parts = [rows(4, 5, seed=seed).requires_grad_() for seed in range(4)]
    osiris_distillation(*parts, 0.5, detach_teacher=False).backward()
    assert all(part.grad is not None and part.grad.any() for part in parts)
    swapped = osiris_distillation(*parts[2:], *parts[:2], 0.5)  # its value does not depend on who teaches
    assert torch.allclose(swapped, osiris_distillation(*parts, 0.5))


def test_one_sided_pieces_agree_with_info_nce() -> None:
    query, positive, negative = (torch.nn.functional.normalize(rows(1, 5, seed=seed)) for seed in range(3))
    # Two images: each has one negative, so that the loss is two pairs of InfoNCE.
    predicted, target = torch.cat([query, negative]), torch.cat([positive, query])
    pieces = [info_nce(predicted[[i]], target[[i]], target[[1 - i]], 0.2) for i in (0, 1)]
    pieces += [info_nce(target[[i]], predicted[[i]], predicted[[1 - i]], 0.2) for i in (0, 1)]
    assert torch.allclose(cross_info_nce(predicted, target, 0.2), torch.stack(pieces).mean())
