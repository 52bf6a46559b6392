"""MAE: which patches are hidden, what reaches the encoder and the decoder, what learns, what parts get to see."""

from dataclasses import replace

import pytest
import torch
from networks import make_encoder
from torch import Tensor

from ccl.encoders import Encoder
from ccl.encoders.vit import cut
from ccl.losses import masked_patches
from ccl.objectives import MAE
from ccl.seeding import uniform
from ccl.views import ViewBatch

NUM, PATCHES, SHOWN = 6, 16, 4
MOMENT = (1, 2)


def small() -> Encoder:
    return make_encoder("vit_tiny", width=8, dim=5, head="linear").train()


def mae(encoder: Encoder, seed: int = 0, masked: float = 0.75) -> MAE:
    torch.manual_seed(1)
    return MAE(encoder, MAE.Options(masked=masked, decoder_width=8, decoder_depth=2, decoder_heads=2), seed=seed)


def batch(*ids: int, turns: Tensor | None = None) -> ViewBatch:
    numbers = torch.tensor(ids or range(50, 50 + NUM))
    views = (torch.stack([noise(int(number)) for number in numbers]),)
    return ViewBatch(torch.arange(len(numbers)), numbers, views, views[0][:0], turns=turns)


def noise(seed: int) -> Tensor:
    return torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(seed))


def loss(objective: MAE, encoder: Encoder, seen: ViewBatch) -> Tensor:
    return objective.contrast(encoder, (), seen, MOMENT).loss


# --- Which patches are hidden


def test_the_mask_is_a_function_of_seed_moment_image_and_turn() -> None:
    objective = mae(small())
    order, num_visible = objective.drawn(batch(), PATCHES, MOMENT)
    assert num_visible == SHOWN
    assert torch.equal(order.sort(dim=1).values, torch.arange(PATCHES).expand(NUM, -1))
    for row, number in enumerate(range(50, 50 + NUM)):  # by hand, one image at a time
        draws = uniform(torch.tensor([number]), PATCHES, 0, "mask", 1, 2)[0].tolist()
        assert order[row].tolist() == sorted(range(PATCHES), key=lambda place: draws[place])
    again, _ = objective.drawn(batch(turns=torch.zeros(NUM, dtype=torch.long)), PATCHES, MOMENT)
    assert torch.equal(again, order)
    others = [
        objective.drawn(batch(turns=torch.ones(NUM, dtype=torch.long)), PATCHES, MOMENT)[0],
        objective.drawn(batch(), PATCHES, (1, 3))[0],
        objective.drawn(batch(), PATCHES, (2, 2))[0],
        mae(small(), seed=1).drawn(batch(), PATCHES, MOMENT)[0],
        objective.drawn(batch(*range(60, 60 + NUM)), PATCHES, MOMENT)[0],
    ]
    assert all((other != order).any(dim=1).all() for other in others)


def test_the_mask_does_not_depend_on_the_company() -> None:
    objective = mae(small())
    order, _ = objective.drawn(batch(), PATCHES, MOMENT)
    alone, _ = objective.drawn(batch(53), PATCHES, MOMENT)
    mixed, _ = objective.drawn(batch(7, 53, 9), PATCHES, MOMENT)
    assert torch.equal(alone[0], order[3])
    assert torch.equal(mixed[1], order[3])


def test_every_patch_is_hidden_equally_often() -> None:
    order, num_visible = mae(small()).drawn(batch(*range(4000)), PATCHES, MOMENT)
    shown = torch.bincount(order[:, :num_visible].flatten(), minlength=PATCHES) / 4000
    assert shown.tolist() == pytest.approx([0.25] * PATCHES, abs=0.03)  # four standard errors


@pytest.mark.parametrize(
    ("masked", "num_patches", "shown"), [(0.9, 10, 1), (0.99, 16, 1), (0.01, 16, 15), (0.75, 64, 16)]
)
def test_at_least_one_patch_is_shown_and_one_hidden(masked: float, num_patches: int, shown: int) -> None:
    assert mae(small(), masked=masked).drawn(batch(), num_patches, MOMENT)[1] == shown


# --- What reaches encoder and decoder


def test_the_loss_is_that_of_its_parts_on_the_hidden_patches() -> None:
    encoder = small()
    objective, seen = mae(encoder), batch()
    order, _ = objective.drawn(seen, PATCHES, MOMENT)
    tokens = encoder.tokens(seen.views[0], order[:, :SHOWN])
    decoder = objective.decoder
    total = torch.zeros(())
    for image in range(NUM):
        rows = decoder.mask_token[0].expand(PATCHES, -1).clone()
        for number, place in enumerate(order[image, :SHOWN].tolist()):
            rows[place] = decoder.embed(tokens[image, number])
        rows = rows + fixed_places()
        for block in decoder.blocks:
            rows = block(rows[None])[0]
        predicted = decoder.predict(decoder.norm(rows))
        patches = cut(seen.views[0][image : image + 1], 4)[0]
        hidden = torch.zeros(PATCHES, dtype=torch.bool)
        hidden[order[image, SHOWN:]] = True
        total = total + masked_patches(predicted[None], patches[None], hidden[None])
    expected = float(total.detach()) / NUM
    assert float(loss(objective, encoder, seen).detach()) == pytest.approx(expected, rel=1e-5)


def fixed_places() -> Tensor:
    """Of 4×4 places and 8 channels, written out: sines of row and column, then cosines, at two frequencies."""
    angles = torch.tensor([[row, row / 100, column, column / 100] for row in range(4) for column in range(4)])
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def test_hidden_pixels_change_the_target_and_nothing_else() -> None:
    encoder = small()
    objective, seen = mae(encoder), batch()
    order, _ = objective.drawn(seen, PATCHES, MOMENT)
    found: list[Tensor] = []
    objective.decoder.register_forward_hook(lambda _, inputs, output: found.extend([inputs[0], output]))
    before = loss(objective, encoder, seen)
    where = torch.arange(256).view(1, 1, 16, 16).expand(1, 3, 16, 16).float()
    for image in range(NUM):
        pixels = cut(where, 4)[0, order[image, SHOWN:]].flatten().long()
        seen.views[0][image].flatten(1)[:, pixels] = torch.randn(3, len(pixels))
    after = loss(objective, encoder, seen)
    assert torch.equal(found[0], found[2])  # the encoder's tokens
    assert torch.equal(found[1], found[3])  # what is predicted
    assert abs(float((after - before).detach())) > 1e-3
    shown = cut(where, 4)[0, order[0, 0]].long()
    seen.views[0][0].flatten(1)[:, shown] += torch.randn(len(shown))
    loss(objective, encoder, seen)
    assert not torch.allclose(found[4], found[0])


# --- What learns, and what others see


def test_encoder_and_decoder_learn_and_the_head_does_not() -> None:
    encoder = small()
    objective = mae(encoder)
    loss(objective, encoder, batch()).backward()
    for name, parameter in [*encoder.backbone.named_parameters(), *objective.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(parameter.grad is None for parameter in encoder.head.parameters())


def test_a_few_updates_find_the_hidden_patches_of_a_pattern() -> None:
    """Stripes continue behind what is hidden: the loss falls far below that of a guess of the mean, 47 / 48."""
    encoder = small()
    objective = mae(encoder)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *objective.parameters()], 3e-3)
    stripes = torch.arange(16).div(2, rounding_mode="floor").remainder(2).float() * 2 - 1
    turned = [stripes.expand(16, 16), stripes[:, None].expand(16, 16)]
    seen = batch()
    seen = replace(seen, views=(torch.stack([turned[n % 2].expand(3, -1, -1) for n in range(NUM)]),))
    values = []
    for epoch in range(150):
        optimizer.zero_grad()
        value = objective.contrast(encoder, (), seen, (0, epoch)).loss
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[0] > 0.9
    assert sum(values[-10:]) / 10 < 0.3


def test_parts_that_keep_the_past_get_unit_rows_of_the_whole_view() -> None:
    encoder, seen = small(), batch()
    objective = mae(encoder)
    whole = encoder.embed(seen.views[0])
    contrast = objective.contrast(encoder, (whole,), seen, MOMENT)
    assert contrast.query is whole.unit
    assert torch.equal(contrast.keys, whole.unit)
    assert not contrast.keys.requires_grad
    alone = objective.contrast(encoder, (), seen, MOMENT)
    assert alone.query.shape == alone.keys.shape == (0, 5)
    assert torch.equal(alone.loss, contrast.loss)
