"""LUMP: pairs of new and old images, what is mixed of them, and how the weight is drawn."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ccl.composition import EpochBatch, Lump, Pooled
from ccl.views import ViewBatch

CONTEXT = (7, 1, 3)  # seed, step, epoch
NUM_NEW, NUM_OLD = 30, 7


def ids() -> Tensor:
    return torch.cat([1000 + torch.arange(NUM_NEW), 10 + torch.arange(NUM_OLD)])


def shown(batch: EpochBatch) -> ViewBatch:
    """Views whose every pixel is the image's id, and in the second view its negative."""
    numbers = ids()[batch.positions]
    value = numbers.float()[:, None, None, None].expand(-1, 3, 2, 2)
    return ViewBatch(batch.positions, numbers, (value, -value), torch.zeros(0), turns=batch.turns)


def weights(alpha: float, count: int) -> list[float]:
    """λ of so many batches, read from what becomes of a pair of 1 and 0."""
    found = []
    lump = Lump(Lump.Options(alpha=alpha), seed=3)
    for number in range(count):
        views = (torch.tensor([1.0, 0.0])[:, None, None, None].expand(2, 3, 2, 2),)
        batch = ViewBatch(torch.tensor([0, 9]), torch.tensor([number, 5]), views, torch.zeros(0))
        found.append(float(lump.mix(batch, 9, (1, 0)).views[0][0, 0, 0, 0]))
    return found


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_batches_are_as_many_pairs_as_pooled_batches_have_images(multiple: int) -> None:
    batches = Lump().batches(ids(), NUM_NEW, 8, multiple, *CONTEXT)
    pooled = Pooled().batches(ids(), NUM_NEW, 8, multiple, *CONTEXT)
    assert [len(batch.positions) for batch in batches] == [2 * len(batch.positions) for batch in pooled]
    for batch in batches:
        new, old = batch.positions.chunk(2)
        assert (new < NUM_NEW).all()
        assert (old >= NUM_NEW).all()
        for rank in range(multiple):  # what a rank gets is pairs too
            mine = batch.positions[rank::multiple]
            assert torch.equal(mine, torch.cat([new[rank::multiple], old[rank::multiple]]))
    views = [(p, t) for b in batches for p, t in zip(b.positions.tolist(), b.turns.tolist(), strict=True)]
    assert len(set(views)) == len(views)  # no view is seen twice


def test_both_views_of_a_pair_are_mixed_with_one_weight_for_the_batch() -> None:
    lump = Lump(seed=7)
    batch = lump.batches(ids(), NUM_NEW, 8, 1, *CONTEXT)[0]
    before, mixed = shown(batch), lump.mix(shown(batch), NUM_NEW, (1, 3))
    new, old = before.ids.chunk(2)
    assert torch.equal(mixed.ids, new)
    assert torch.equal(mixed.positions, batch.positions.chunk(2)[0])
    assert torch.equal(mixed.turns, batch.turns.chunk(2)[0])
    pixels = mixed.views[0][:, 0, 0, 0]
    found = (pixels - old) / (new - old)  # λ of each pair
    assert 0.0 <= float(found[0]) <= 1.0
    torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-4, rtol=0)
    assert torch.equal(mixed.views[1], -mixed.views[0])
    assert (mixed.views[0] == pixels[:, None, None, None]).all()


def test_without_old_images_nothing_is_mixed() -> None:
    lump, new = Lump(), ids()[:NUM_NEW]
    batches, pooled = lump.batches(new, NUM_NEW, 8, 1, *CONTEXT), Pooled().batches(new, NUM_NEW, 8, 1, *CONTEXT)
    assert all(torch.equal(mine.positions, other.positions) for mine, other in zip(batches, pooled, strict=True))
    batch = shown(batches[0])
    assert lump.mix(batch, NUM_NEW, (0, 0)) is batch


def test_the_weight_depends_on_seed_moment_and_batch_only() -> None:
    lump = Lump(seed=7)
    first, second = (shown(batch) for batch in lump.batches(ids(), NUM_NEW, 8, 1, *CONTEXT)[:2])

    def pixel(lump: Lump, batch: ViewBatch, moment: tuple[int, int]) -> float:
        new, old = batch.ids.chunk(2)
        mixed = float(lump.mix(batch, NUM_NEW, moment).views[0][0, 0, 0, 0])
        return (mixed - float(old[0])) / float(new[0] - old[0])

    own = pixel(lump, first, (1, 3))
    assert pixel(Lump(seed=7), first, (1, 3)) == own
    others = [pixel(Lump(seed=8), first, (1, 3)), pixel(lump, first, (2, 3)), pixel(lump, first, (1, 4))]
    assert len({round(share, 6) for share in [own, *others, pixel(lump, second, (1, 3))]}) == 5


@pytest.mark.parametrize("alpha", [0.4, 2.0])
def test_weights_are_drawn_from_a_beta_distribution(alpha: float) -> None:
    found = np.array(weights(alpha, 4000))
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(variance / len(found))
    assert found.var() == pytest.approx(variance, rel=0.1)
