"""BYOL, SimSiam, Barlow Twins and VICReg against NumPy; what has a gradient, what follows, what parts get to see."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import make_encoder
from seen import seen_with
from torch import Tensor, nn

from ccl.encoders import Embedded, Encoder
from ccl.encoders.momentum_encoder import rising_momentum
from ccl.losses import barlow_twins, vicreg
from ccl.objectives import BYOL, BarlowTwins, SimSiam, VICReg
from ccl.part import Objective
from ccl.views import ViewBatch

NUM, DIM = 8, 6


def small() -> Encoder:
    return make_encoder("convnet", width=4, dim=DIM, head="mlp_bn").train()


def batch() -> ViewBatch:
    draw = torch.Generator().manual_seed(5)
    first = torch.randn(NUM, 3, 16, 16, generator=draw)
    second = first + 0.5 * torch.randn(NUM, 3, 16, 16, generator=draw)
    return ViewBatch(torch.arange(NUM), torch.arange(NUM), (first, second), first[:0])


def projected(seed: int = 0, requires_grad: bool = False) -> tuple[Embedded, ...]:
    """Two views' projections without a network, of norms that are not 1; nothing looks at their features."""
    draw = torch.Generator().manual_seed(seed)
    views = [3.0 * torch.randn(NUM, DIM, generator=draw) + 0.5 for _ in range(2)]
    views[1] += views[0]
    leaves = [view.requires_grad_(requires_grad) for view in views]
    return tuple(Embedded(rows[:, :0], rows, F.normalize(rows, dim=1)) for rows in leaves)


def objectives() -> dict[str, Objective]:
    torch.manual_seed(1)
    return {
        "byol": BYOL(small(), BYOL.Options(predictor_width=10)),
        "simsiam": SimSiam(DIM, SimSiam.Options(predictor_width=10)),
        "barlow_twins": BarlowTwins(),
        "vicreg": VICReg(),
    }


# --- Oracles


def predicted(predictor: nn.Module, rows: Tensor) -> np.ndarray:
    """Linear, batch norm with the rows' own statistics, ReLU, linear; written out."""
    weights = {name: value.detach().double().numpy() for name, value in predictor.named_parameters()}
    hidden = rows.detach().double().numpy() @ weights["0.weight"].T  # no bias: batch norm follows
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    hidden = np.maximum(hidden * weights["1.weight"] + weights["1.bias"], 0.0)
    return hidden @ weights["3.weight"].T + weights["3.bias"]


def cosines(guesses: np.ndarray, targets: np.ndarray) -> list[float]:
    return [
        sum(a * b for a, b in zip(guess, target, strict=True)) / math.hypot(*guess) / math.hypot(*target)
        for guess, target in zip(guesses.tolist(), targets.tolist(), strict=True)
    ]


def crossed(predictor: nn.Module, student: tuple[Embedded, ...], targets: list[Tensor]) -> list[float]:
    """The cosine of each prediction with the target of the other view: first view's, then second's."""
    guesses = predicted(predictor, torch.cat([view.projection for view in student]))
    others = torch.cat([targets[1], targets[0]]).detach().double().numpy()
    return cosines(guesses, others)


def test_byol_is_its_equation_in_both_directions() -> None:
    seen, encoder = batch(), small()
    objective = BYOL(encoder, BYOL.Options(predictor_width=10)).train()
    with torch.no_grad():
        for parameter in objective.target.copy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    student = tuple(encoder.embed(torch.cat(seen.views)).rows(part) for part in (slice(NUM), slice(NUM, None)))
    twin = small()
    twin.load_state_dict(objective.target.copy.state_dict())
    targets = twin.embed(torch.cat(seen.views)).projection.split(NUM)
    contrast = objective.contrast(small(), student, seen, (0, 0))
    found = crossed(objective.predictor, student, list(targets))
    expected = sum(2 - 2 * cosine for cosine in found) / NUM  # a mean over the images, a sum over the views
    assert float(contrast.loss.detach()) == pytest.approx(expected, rel=1e-4)


def test_simsiam_is_its_equation_in_both_directions() -> None:
    student, objective = projected(), objectives()["simsiam"]
    found = crossed(objective.get_submodule("predictor"), student, [view.projection for view in student])
    loss = objective.contrast(small(), student, batch(), (0, 0)).loss
    assert float(loss) == pytest.approx(-sum(found) / len(found), rel=1e-4)


def test_barlow_twins_and_vicreg_are_of_raw_projections() -> None:
    student = projected()
    rows = [view.projection for view in student]
    barlow, vic = BarlowTwins.Options(off_diagonal=0.3, scale=0.7), VICReg.Options(invariance=7, variance=5)
    for objective, expected in (
        (BarlowTwins(barlow), barlow_twins(*rows, 0.3, 0.7)),
        (VICReg(vic), vicreg(*rows, 7, 5, vic.covariance)),
    ):
        loss = objective.contrast(small(), student, batch(), (0, 0)).loss
        assert float(loss) == pytest.approx(float(expected), rel=1e-4)


# --- What has a gradient


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_a_target_has_no_gradient(name: str) -> None:
    """A predictor that answers the same whatever it sees leaves the student nothing to learn, but as a target."""
    objective, student = objectives()[name], projected(requires_grad=True)
    last = objective.get_submodule("predictor.3")
    nn.init.zeros_(last.weight)
    objective.contrast(small(), student, batch(), (0, 0)).loss.backward()
    for view in student:
        assert not view.projection.grad.any()
    assert last.bias.grad.any()
    frozen = [parameter for name, parameter in objective.named_parameters() if name.startswith("target.")]
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in frozen)


@pytest.mark.parametrize("name", objectives())
def test_both_views_learn_and_so_does_the_predictor(name: str) -> None:
    objective, student = objectives()[name], projected(requires_grad=True)
    objective.contrast(small(), student, batch(), (0, 0)).loss.backward()
    for view in student:
        assert (view.projection.grad.abs().sum(dim=1) > 0).all()
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    assert bool(trained) == (name in ("byol", "simsiam"))
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained)


@pytest.mark.parametrize("name", objectives())
def test_the_order_of_the_views_does_not_matter(name: str) -> None:
    objective, student, seen = objectives()[name], projected(), batch()
    swapped = ViewBatch(seen.positions, seen.ids, seen.views[::-1], seen.plain)
    loss = float(objective.contrast(small(), student, seen, (0, 0)).loss)
    assert float(objective.contrast(small(), student[::-1], swapped, (0, 0)).loss) == pytest.approx(loss, rel=1e-4)


# --- What others see


@pytest.mark.parametrize("name", objectives())
def test_other_parts_get_unit_rows(name: str) -> None:
    student = projected(requires_grad=True)
    contrast = objectives()[name].contrast(small(), student, batch(), (0, 0))
    assert contrast.query is student[0].unit
    assert torch.equal(contrast.keys, student[1].unit)
    assert not contrast.keys.requires_grad
    assert len(contrast.pairs) == 2
    for query, key in contrast.pairs:
        assert query.requires_grad
        torch.testing.assert_close(torch.cat([query, key]).norm(dim=1), torch.ones(2 * NUM))
    mean_cosine = float(torch.stack([(query * key).sum(dim=1).mean() for query, key in contrast.pairs]).mean())
    if name == "byol":
        assert float(contrast.loss) == pytest.approx(4 - 4 * mean_cosine, rel=1e-4)
    if name == "simsiam":
        assert float(contrast.loss) == pytest.approx(-mean_cosine, rel=1e-4)


# --- The target follows


@pytest.mark.parametrize(("done", "momentum"), [(0.0, 0.9), (1 / 3, 0.925), (0.5, 0.95), (1.0, 1.0)])
def test_byol_s_target_follows_ever_more_slowly(done: float, momentum: float) -> None:
    encoder = small()
    objective = BYOL(encoder, BYOL.Options(predictor_width=10, momentum=0.9))
    before = {name: value.clone() for name, value in objective.target.copy.named_parameters()}
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1.0)
    nothing = objective.contrast(small(), projected(), batch(), (0, 0))
    objective.after_update(encoder, seen_with(nothing, batch(), done))
    for name, value in objective.target.copy.named_parameters():
        torch.testing.assert_close(value, before[name] + (1 - momentum), atol=1e-6, rtol=0)


def test_a_rising_momentum_may_end_below_one_or_stay() -> None:
    assert [rising_momentum(0.99, 0.999, done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.99, 0.9945, 0.999])
    assert {rising_momentum(0.9, 0.9, done) for done in (0.0, 0.3, 1.0)} == {0.9}  # to the last bit
