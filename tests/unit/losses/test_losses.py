"""The formulas against naive loops written from the equations, closed forms, invariances and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.losses import info_nce, instance_softmax, nt_xent, similarity_distillation


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def dot(a: Tensor, b: Tensor) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


# --- InfoNCE


def info_nce_by_hand(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> float:
    total = 0.0
    for row in range(len(query)):
        own = math.exp(dot(query[row], positive[row]) / temperature)
        others = sum(math.exp(dot(query[row], negative) / temperature) for negative in negatives)
        total += -math.log(own / (own + others))
    return total / len(query)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_info_nce_is_the_paper_s_equation(temperature: float) -> None:
    query, positive, negatives = unit(5, 8), unit(5, 8, seed=1), unit(11, 8, seed=2)
    expected = info_nce_by_hand(query, positive, negatives, temperature)
    assert float(info_nce(query, positive, negatives, temperature)) == pytest.approx(expected, rel=1e-5)


def test_info_nce_of_equal_embeddings_is_log_of_the_number_of_candidates() -> None:
    same = unit(1, 8)
    assert float(info_nce(same.expand(4, 8), same.expand(4, 8), same.expand(9, 8), 0.1)) == pytest.approx(math.log(10))


def test_info_nce_does_not_mind_the_order_of_negatives_or_a_rotation() -> None:
    query, positive, negatives = unit(5, 8), unit(5, 8, seed=1), unit(11, 8, seed=2)
    rotation, _ = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))
    plain = info_nce(query, positive, negatives, 0.1)
    assert torch.allclose(plain, info_nce(query, positive, negatives.flip(0), 0.1), atol=1e-5)
    assert torch.allclose(plain, info_nce(query @ rotation, positive @ rotation, negatives @ rotation, 0.1), atol=1e-4)


def test_an_ignored_negative_counts_as_absent() -> None:
    query, positive, negatives = unit(3, 8), unit(3, 8, seed=1), unit(6, 8, seed=2)
    ignore = torch.zeros(3, 6, dtype=torch.bool)
    ignore[:, 4] = True
    kept = negatives[[0, 1, 2, 3, 5]]
    assert torch.allclose(info_nce(query, positive, negatives, 0.1, ignore), info_nce(query, positive, kept, 0.1))


def test_info_nce_pulls_the_query_to_its_key() -> None:
    query = unit(4, 8).requires_grad_()
    positive, negatives = unit(4, 8, seed=1), unit(7, 8, seed=2)
    info_nce(query, positive, negatives, 0.1).backward()
    moved = F.normalize(query.detach() - 0.01 * query.grad, dim=1)
    assert ((moved * positive).sum(1) > (query.detach() * positive).sum(1)).all()


# --- NT-Xent


def test_nt_xent_is_simclr_s_equation() -> None:
    first, second, temperature = unit(4, 6), unit(4, 6, seed=1), 0.2
    views = [*first, *second]
    total = 0.0
    for i in range(8):
        partner = (i + 4) % 8
        candidates = sum(math.exp(dot(views[i], views[k]) / temperature) for k in range(8) if k != i)
        total += -math.log(math.exp(dot(views[i], views[partner]) / temperature) / candidates)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(total / 8, rel=1e-5)


def test_nt_xent_is_symmetric_and_has_its_closed_form() -> None:
    first, second = unit(4, 6), unit(4, 6, seed=1)
    assert torch.allclose(nt_xent(first, second, 0.1), nt_xent(second, first, 0.1))
    same = unit(1, 6).expand(5, 6)
    assert float(nt_xent(same, same, 0.1)) == pytest.approx(math.log(9))  # 2N − 1 equal candidates


# --- InsDisc


def test_instance_softmax_is_the_exact_softmax() -> None:
    query, bank, rows = unit(3, 6), unit(7, 6, seed=1), torch.tensor([2, 0, 6])
    total = 0.0
    for n in range(3):
        weights = [math.exp(dot(query[n], row) / 0.2) for row in bank]
        total += -math.log(weights[int(rows[n])] / sum(weights))
    assert float(instance_softmax(query, bank, rows, 0.2)) == pytest.approx(total / 3, rel=1e-5)


# --- Distillation


def distillation_by_hand(
    plain: Tensor, view: Tensor, taught_plain: Tensor, taught_view: Tensor, student: float, teacher: float
) -> float:
    def row(i: int, rows: Tensor, columns: Tensor, temperature: float) -> list[float]:
        weights = [math.exp(dot(rows[i], column) / temperature) for column in columns]
        return [weight / sum(weights) for weight in weights]

    total = 0.0
    for i in range(len(plain)):
        target = row(i, taught_plain, taught_view, teacher)
        answer = row(i, plain, view, student)
        total -= sum(t * math.log(s) for t, s in zip(target, answer, strict=True))
    return total / len(plain)


@pytest.mark.parametrize(("student", "teacher"), [(0.1, 0.1), (0.07, 0.04)])
def test_distillation_is_the_paper_s_equation_row_by_row(student: float, teacher: float) -> None:
    parts = [unit(5, 8, seed=seed) for seed in range(4)]
    value = float(similarity_distillation(*parts, student, teacher))
    assert value == pytest.approx(distillation_by_hand(*parts, student, teacher), rel=1e-5)


def test_distillation_of_equal_networks_is_the_teacher_s_entropy() -> None:
    plain, view = unit(6, 8), unit(6, 8, seed=1)
    target = torch.softmax(plain @ view.T / 0.1, dim=1)
    entropy = -(target * target.log()).sum(1).mean()
    value = similarity_distillation(plain, view, plain, view, 0.1)
    assert float(value) == pytest.approx(float(entropy), rel=1e-5)
    worse = similarity_distillation(unit(6, 8, seed=2), unit(6, 8, seed=3), plain, view, 0.1)
    assert worse > value  # cross-entropy is least at the target itself


def test_distillation_teaches_the_student_only() -> None:
    parts = [unit(5, 8, seed=seed).requires_grad_() for seed in range(4)]
    similarity_distillation(*parts, 0.1).backward()
    assert [part.grad is not None for part in parts] == [True, True, False, False]


def test_losses_are_float32_even_from_half_precision() -> None:
    query, positive, negatives = (unit(3, 8, seed=seed).to(torch.bfloat16) for seed in range(3))
    assert info_nce(query, positive, negatives, 0.1).dtype == torch.float32
    assert nt_xent(query, positive, 0.1).dtype == torch.float32
    assert similarity_distillation(query, positive, query, positive, 0.1).dtype == torch.float32


# --- As lightly has them, where it is installed


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_contrastive_losses_are_lightly_s(temperature: float) -> None:
    lightly = pytest.importorskip("lightly.loss")
    first, second = unit(6, 8).float(), unit(6, 8, seed=1).float()
    expected = lightly.NTXentLoss(temperature=temperature)(first, second)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(float(expected), rel=1e-5)
    banked = lightly.NTXentLoss(temperature=temperature, memory_bank_size=(11, 8))  # MoCo's
    banked(first, second)  # the bank begins with a first batch
    bank = banked.memory_bank.bank.clone()
    queue = bank if len(bank) == 11 else bank.T  # older versions have its columns
    expected = banked(first, second)
    assert float(info_nce(first, second, queue, temperature)) == pytest.approx(float(expected), rel=1e-5)
