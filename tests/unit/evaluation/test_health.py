"""Health without labels: closed forms, naive loops and planted collapses."""

import math

import pytest
import torch

from ccl.evaluation import health as health_module
from ccl.evaluation.health import Health, alignment, effective_rank, mean_cosine, uniformity


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_equal_orthogonal_directions_count_one_each() -> None:
    for k in (1, 3, 8):
        rotation = torch.linalg.qr(draw(8, 8).double()).Q
        rows = torch.eye(8, dtype=torch.float64)[:k].repeat(5, 1) @ rotation
        assert effective_rank(rows) == pytest.approx(k, abs=1e-4)


def test_effective_rank_of_two_unequal_directions() -> None:
    rows = torch.diag(torch.tensor([3.0, 1.0]))  # shares 3/4 and 1/4 of the singular values themselves
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(rows) == pytest.approx(math.exp(entropy))


@pytest.mark.parametrize("shape", [(40, 7), (7, 40)])
def test_effective_rank_equals_the_definition_by_svd(shape) -> None:
    rows = draw(*shape)
    shares = torch.linalg.svdvals(rows.double())
    shares = shares / shares.sum()
    assert effective_rank(rows) == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-6)
    assert effective_rank(rows * 17) == pytest.approx(effective_rank(rows))


def naive_pairs(rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    unit = [row / row.norm() for row in rows.double()]
    return [(a, b) for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]


def test_pairwise_numbers_equal_a_naive_loop(monkeypatch) -> None:
    monkeypatch.setattr(health_module, "_CHUNK", 7)  # several chunks and a rest
    rows = draw(30, 5)
    pairs = naive_pairs(rows)
    assert mean_cosine(rows) == pytest.approx(sum(float(a @ b) for a, b in pairs) / len(pairs))
    kernel = sum(math.exp(-2 * float(((a - b) ** 2).sum())) for a, b in pairs) / len(pairs)
    assert uniformity(rows) == pytest.approx(math.log(kernel))


def test_two_opposite_points() -> None:
    rows = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    assert mean_cosine(rows) == pytest.approx(-1.0)
    assert uniformity(rows) == pytest.approx(-8.0)  # squared distance 4, times -2


def test_one_point() -> None:
    rows = torch.tensor([[0.6, 0.8]]).repeat(9, 1)
    assert mean_cosine(rows) == pytest.approx(1.0)
    assert uniformity(rows) == pytest.approx(0.0, abs=1e-9)


def test_alignment_by_hand() -> None:
    first = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    second = torch.tensor([[0.0, 1.0], [0.0, 1.0]])  # squared distances 2 and 0
    assert alignment(first, second) == pytest.approx(1.0)


def test_spread_embeddings_are_healthy() -> None:
    health = Health.of(draw(500, 32))
    assert not health.is_collapsed
    assert health.reasons == ()
    assert abs(health.mean_cosine) < 0.02
    assert health.effective_rank > 30


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (draw(1, 32) + 0.01 * draw(200, 32, seed=1), "same embedding"),
        (draw(1, 32) * draw(200, 1, seed=1), "one direction"),  # one line, both signs: mean cosine near 0
        (torch.zeros(10, 4), "zero"),
        (torch.full((10, 4), math.nan), "nan"),
    ],
)
def test_collapse_is_found_and_named(rows, words) -> None:
    health = Health.of(rows)
    assert health.is_collapsed
    assert any(words in reason for reason in health.reasons)


def test_one_row_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Health.of(torch.ones(1, 4))
