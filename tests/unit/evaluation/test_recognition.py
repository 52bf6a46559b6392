"""Recognition in another view against a plain double loop, chance and closed forms."""

import math

import pytest
import torch
from torch import Tensor

from ccl.evaluation import recognition


def by_hand(first: Tensor, second: Tensor) -> float:
    """For each row the rows of the other view by cosine; the best must be its own."""
    right = 0
    for place, row in enumerate(first.tolist()):
        cosines = [
            sum(a * b for a, b in zip(row, other, strict=True)) / (math.hypot(*row) * math.hypot(*other))
            for other in second.tolist()
        ]
        right += cosines.index(max(cosines)) == place
    return 100 * right / len(first)


def test_as_a_plain_loop_has_it() -> None:
    draws = torch.Generator().manual_seed(0)
    first = torch.randn(40, 6, generator=draws)
    second = first + 0.8 * torch.randn(40, 6, generator=draws)
    found = recognition(first, second)
    assert found == pytest.approx(by_hand(first, second))
    assert 30 < found < 95  # neither all nor none, so that the loop can disagree
    assert recognition(3 * first, second * torch.arange(1, 41)[:, None]) == pytest.approx(found)  # lengths say nothing
    turned = torch.linalg.qr(torch.randn(6, 6, generator=draws))[0]
    assert recognition(first @ turned, second @ turned) == pytest.approx(found)


def test_bounds_and_draws() -> None:
    rows = torch.eye(8)
    assert recognition(rows, rows) == 100.0
    assert recognition(rows, rows.roll(1, 0)) == 0.0
    assert recognition(torch.ones(8, 3), torch.ones(8, 3)) == pytest.approx(100 / 8)  # collapsed: as by chance
    pairs = rows[:4].repeat_interleave(2, 0)  # two images look alike: a draw of two
    assert recognition(pairs, pairs) == pytest.approx(50.0)


def test_nothing_to_measure() -> None:
    assert math.isnan(recognition(torch.ones(1, 3), torch.ones(1, 3)))
    assert math.isnan(recognition(torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1)))
    with pytest.raises(ValueError, match="one shape"):
        recognition(torch.ones(2, 3), torch.ones(3, 3))
