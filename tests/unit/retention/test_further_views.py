"""Further views of old images: against which rows, for whom, and that no new image is embedded once more."""

from dataclasses import replace

import pytest
import torch
from seen import encoders, images, seen_by, value
from tiny import learn, tiny_settings
from torch import Tensor

from ccl.encoders import Embedded, Encoder
from ccl.losses import info_nce
from ccl.part import BatchContext
from ccl.retention.further_views import FurtherViews

IS_OLD = [True, False, True, False]


def further(encoder: Encoder, count: int = 1) -> tuple[Embedded, ...]:
    return tuple(encoder.embed(images(sum(IS_OLD), 7 + number)) for number in range(count))


def oracle(seen: BatchContext, negatives: Tensor, left_out: list[list[int]], temperature: float) -> float:
    """InfoNCE of each further view; `left_out` names each old image's ignored negatives."""
    keys = seen.contrast.pairs[0][1][seen.is_old]
    ignore = torch.tensor([[number in some for number in range(len(negatives))] for some in left_out])
    found = [info_nce(view.unit, keys, negatives, temperature, ignore) for view in seen.further]
    return value(torch.stack(found).mean())


@pytest.mark.parametrize("count", [1, 2])
def test_the_loss_is_info_nce_of_the_further_views(count: int) -> None:
    encoder, _ = encoders()
    queue = torch.nn.functional.normalize(images(6, 9).flatten(1)[:, :8], dim=1)
    seen = seen_by(encoder, IS_OLD, contrast={"negatives": (queue,)}, further=further(encoder, count))
    found = FurtherViews(FurtherViews.Options(count=count), temperature=0.2).loss(seen)
    assert value(found) == pytest.approx(oracle(seen, queue, [[], []], 0.2), rel=1e-5)


def test_negatives_that_the_objective_leaves_out_are_left_out() -> None:
    encoder, _ = encoders()
    queue = torch.nn.functional.normalize(images(6, 9).flatten(1)[:, :8], dim=1)
    ignore = torch.zeros(len(IS_OLD), len(queue), dtype=torch.bool)
    ignore[0, 1] = ignore[1, 2] = ignore[2, 5] = True  # the second row is a new image's
    seen = seen_by(encoder, IS_OLD, contrast={"negatives": (queue,), "ignore": (ignore,)}, further=further(encoder))
    assert value(FurtherViews(temperature=0.2).loss(seen)) == pytest.approx(
        oracle(seen, queue, [[1], [5]], 0.2), rel=1e-5
    )


def test_without_a_queue_the_keys_of_other_images_are_negatives() -> None:
    encoder, _ = encoders()
    seen = seen_by(encoder, IS_OLD, further=further(encoder))
    expected = oracle(seen, seen.contrast.keys, [[0], [2]], 0.2)
    assert value(FurtherViews(temperature=0.2).loss(seen)) == pytest.approx(expected, rel=1e-5)


def test_gradients_reach_the_student_by_the_further_views_alone() -> None:
    encoder, _ = encoders()
    seen = seen_by(encoder, IS_OLD, further=further(encoder))
    loss = FurtherViews(temperature=0.2).loss(seen)
    to_further, to_query = torch.autograd.grad(loss, [seen.further[0].unit, seen.contrast.query], allow_unused=True)
    assert (to_further.norm(dim=1) > 0).all()
    assert to_query is None


def test_a_batch_without_old_images_has_no_loss() -> None:
    encoder, _ = encoders()
    assert FurtherViews(temperature=0.2).loss(seen_by(encoder, [False, False])) is None


@pytest.mark.parametrize(("share", "most"), [(1.0, 16), (0.75, 14), (0.5, 12)])
def test_the_student_embeds_further_views_of_old_images_and_no_others(
    share: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a batch is old: of 8 images 4, and with two further views of all of these 16 rows."""
    sizes: list[int] = []
    embed = Encoder.embed

    def counted(self: Encoder, shown: Tensor) -> Embedded:
        if self.training and torch.is_grad_enabled():
            sizes.append(len(shown))
        return embed(self, shown)

    monkeypatch.setattr(Encoder, "embed", counted)
    changes = (f"further_views.share={share}", "further_views.count=2", "batch_size=8", "share.old=0.5")
    learner, watcher = learn(tiny_settings("strategy=multi_view_rehearsal", *changes))
    first = [size for size, row in zip(sizes, watcher.losses, strict=True) if "further_views" not in row]
    later = [size for size, row in zip(sizes, watcher.losses, strict=True) if "further_views" in row]
    assert set(first) == {8}
    assert max(later) == most
    assert len(set(later)) <= 2  # whole batches have one shape, and the rest of an epoch another
    assert learner.num_further_views == 2


@pytest.mark.parametrize(("share", "count"), [(1.0, 8), (0.75, 6), (0.6, 5), (0.05, 0)])
def test_a_share_of_a_batch_s_old_images_has_further_views(share: float, count: int) -> None:
    learner, _ = learn(tiny_settings("strategy=multi_view_rehearsal", f"further_views.share={share}"))
    positions = torch.arange(12) % 3 + learner.num_new - 1  # a new image, then two old ones, and so on
    chosen = learner.has_further(positions)
    assert chosen.tolist() == [place % 3 > 0 and place - place // 3 <= count for place in range(12)]


def test_the_loss_is_of_the_images_that_have_further_views() -> None:
    """The mean over fewer images, against each one's own key."""
    encoder, _ = encoders()
    queue = torch.nn.functional.normalize(images(6, 9).flatten(1)[:, :8], dim=1)
    shown = further(encoder)[0]
    whole = seen_by(encoder, IS_OLD, contrast={"negatives": (queue,)}, further=(shown,))
    found = []
    for row, place in ((0, 0), (1, 2)):
        batch = replace(whole.batch, has_further=torch.arange(len(IS_OLD)) == place)
        one = replace(whole, batch=batch, further=(shown.rows(slice(row, row + 1)),), num_further_of_all=1)
        found.append(FurtherViews(temperature=0.2).loss(one))
    together = FurtherViews(temperature=0.2).loss(whole)
    assert value(together) == pytest.approx((value(found[0]) + value(found[1])) / 2, rel=1e-5)
    assert value(found[0]) != pytest.approx(value(found[1]), rel=1e-3)
