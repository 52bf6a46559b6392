"""Optimizers: what they move, by which formula, at which rate, and what is saved of them."""

import math

import pytest
import torch
from tiny import learn, tiny_settings
from torch import nn

from ccl.runs.build import build_learner, build_plan
from ccl.training import OptimizerOptions, Plan, Progress
from ccl.training.optimizer import LARS

CPU = torch.device("cpu")


def plan(epochs: int = 10, **options: object) -> Plan:
    asked = OptimizerOptions.model_validate({"learning_rate": 0.5, "weight_decay": 0.0, **options})
    return Plan(epochs, batch_size=4, optimizer=asked)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def moved(module: nn.Module, optimizer: torch.optim.Optimizer, times: int = 3) -> None:
    for turn in range(times):
        optimizer.zero_grad()
        rows = torch.arange(15.0).view(5, 3).mul(turn + 1).sin()
        module(rows).square().sum().backward()
        optimizer.step()


def test_sgd_has_the_encoder_s_parameters_first_and_in_their_order() -> None:
    learner = build_learner(tiny_settings("strategy=ccl"), CPU)
    (group,) = build_plan(tiny_settings()).make_optimizer(learner).param_groups
    assert all(mine is theirs for mine, theirs in zip(group["params"], learner.encoder.parameters(), strict=True))


def test_lars_by_its_formula() -> None:
    module, twin = network(), network()
    optimizer = LARS(module.parameters(), 0.3, momentum=0.9, weight_decay=0.1, trust=0.02)
    moved(module, optimizer)
    momentum: dict[str, torch.Tensor] = {}
    for turn in range(3):
        rows = torch.arange(15.0).view(5, 3).mul(turn + 1).sin()
        gradients = torch.autograd.grad(twin(rows).square().sum(), list(twin.parameters()))
        with torch.no_grad():
            for (name, weight), gradient in zip(twin.named_parameters(), gradients, strict=True):
                step = gradient
                if weight.ndim > 1:
                    norm, slope = math.sqrt(float((weight**2).sum())), math.sqrt(float((gradient**2).sum()))
                    local = 0.02 * norm / (slope + 0.1 * norm)
                    step = (gradient + 0.1 * weight) * min(local / 0.3, 1.0)
                momentum[name] = step if turn == 0 else 0.9 * momentum[name] + step
                weight -= 0.3 * momentum[name]
    for (name, mine), theirs in zip(module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6, msg=name)


def test_lars_leaves_a_weight_without_gradient_finite() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.zeros(2, 2)
    LARS([weight], 0.1, weight_decay=0.1).step()
    assert weight.isfinite().all()


def test_a_weight_that_learns_later_than_others_moves_as_with_plain_sgd() -> None:
    """As the parts of the past do where momentum is carried over, or where a batch has nothing for them."""
    module, twin = network(), network()
    for each, optimizer in (
        (module, plan(learning_rate=0.01, momentum=0.9, weight_decay=0.1).make_optimizer(module)),
        (twin, torch.optim.SGD(twin.parameters(), 0.01, momentum=0.9, weight_decay=0.1, foreach=False)),
    ):
        for turn in range(4):
            optimizer.zero_grad(set_to_none=True)
            each[2].requires_grad_(turn > 1)
            each(torch.arange(15.0).view(5, 3).mul(turn + 1).sin()).square().sum().backward()
            optimizer.step()
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_adamw_is_torch_s() -> None:
    module, twin = network(), network()
    moved(module, plan(name="adamw", weight_decay=0.2, momentum=0.8, beta2=0.95).make_optimizer(module))
    moved(twin, torch.optim.AdamW(twin.parameters(), 0.5, betas=(0.8, 0.95), weight_decay=0.2, fused=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True))


def test_biases_and_norms_decay_only_if_asked() -> None:
    module = network()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = plan(weight_decay=0.1, decay_norms=False).make_optimizer(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in module.named_parameters():
        expected = before[name] * (1 - 0.5 * 0.1) if value.ndim > 1 else before[name]
        torch.testing.assert_close(value.detach(), expected)


def test_the_rate_rises_update_by_update_then_falls_along_the_cosine() -> None:
    warm = plan(warmup_epochs=2)
    assert [warm.learning_rate_at(0, share) for share in (0.25, 0.5, 1.0)] == [0.5 / 8, 0.5 / 4, 0.25]
    assert warm.learning_rate_at(1, 1.0) == 0.5
    assert warm.learning_rate_at(2) == 0.5
    assert warm.learning_rate_at(6) == pytest.approx(0.25)
    assert plan(warmup_epochs=2, schedule="constant").learning_rate_at(9) == 0.5
    assert [plan().learning_rate_at(epoch) for epoch in (0, 5)] == [0.5, pytest.approx(0.25)]


@pytest.mark.parametrize("kind", ["sgd", "lars", "adamw"])
def test_an_optimizer_s_state_comes_back(kind: str) -> None:
    module, options = network(), plan(name=kind, learning_rate=0.01)
    progress = Progress()
    moved(module, progress.take(options.make_optimizer(module)))
    saved = {name: value.clone() for name, value in progress.state_dict().items()}
    copied = network()
    copied.load_state_dict(module.state_dict())
    restored = Progress.restored({"step": 0, "epoch": 1, "batch": 1, "phase": "train"}, saved)
    moved(copied, restored.take(options.make_optimizer(copied)))
    moved(module, progress.optimizer)  # type: ignore[arg-type]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(module.parameters(), copied.parameters(), strict=True))


def test_a_checkpoint_of_before_holds_momentum_by_number_alone() -> None:
    module = network()
    momentum = {str(number): torch.full_like(p, 0.5) for number, p in enumerate(module.parameters())}
    restored = Progress.restored({"step": 0, "epoch": 1, "batch": 0, "phase": "train"}, momentum)
    optimizer = restored.take(plan().make_optimizer(module))
    assert all(bool((optimizer.state[p]["momentum_buffer"] == 0.5).all()) for p in module.parameters())


@pytest.mark.parametrize("kind", ["lars", "adamw"])
def test_a_stream_is_learned_with_it(kind: str) -> None:
    settings = tiny_settings(f"optimizer.name={kind}", "optimizer.learning_rate=0.01", "optimizer.warmup_epochs=1")
    _, watcher = learn(settings)
    assert all(math.isfinite(value) for losses in watcher.losses for value in losses.values())
    assert watcher.rates[1::2] == pytest.approx([0.01, 0.01])


def test_simsiam_s_predictor_keeps_its_rate_while_the_encoder_s_falls() -> None:
    settings = tiny_settings("strategy=finetuning", "objective=simsiam", "epochs=4", "optimizer.learning_rate=0.5")
    learner, options = build_learner(settings, CPU), build_plan(settings)
    optimizer = options.make_optimizer(learner)
    options.set_rate(optimizer, epoch=2)
    of_encoder, of_predictor = optimizer.param_groups
    assert [id(p) for p in of_encoder["params"]] == [id(p) for p in learner.encoder.parameters()]
    assert [id(p) for p in of_predictor["params"]] == [id(p) for p in learner.objective.parameters()]
    assert (of_encoder["lr"], of_predictor["lr"]) == (pytest.approx(0.25), 0.5)
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: value.detach().clone() for name, value in learner.named_parameters()}
    optimizer.step()
    for name, value in learner.named_parameters():
        rate = 0.5 if name.startswith("objective.predictor.") else 0.25
        torch.testing.assert_close(value.detach(), before[name] - rate * (1 + 5e-4 * before[name]))


def test_constant_rates_and_norms_that_do_not_decay_go_together() -> None:
    settings = tiny_settings("strategy=finetuning", "objective=simsiam", "optimizer.decay_norms=false")
    learner = build_learner(settings, CPU)
    groups = build_plan(settings).make_optimizer(learner).param_groups
    kinds = [(group["constant_rate"], group["weight_decay"], {p.ndim < 2 for p in group["params"]}) for group in groups]
    assert kinds == [(False, 5e-4, {False}), (False, 0.0, {True}), (True, 5e-4, {False}), (True, 0.0, {True})]
    assert sum(len(group["params"]) for group in groups) == len(list(learner.parameters()))


@pytest.mark.parametrize("objective", ["byol", "simsiam"])
def test_a_predictor_learns(objective: str) -> None:
    settings = tiny_settings("strategy=finetuning", f"objective={objective}")
    before = build_learner(settings, CPU).state_dict()
    learner, _ = learn(settings)
    names = [name for name, value in before.items() if name.startswith("objective.predictor.") and value.ndim > 1]
    assert len(names) == 2
    for name in names:
        assert float((learner.state_dict()[name] - before[name]).norm()) > 1e-2 * float(before[name].norm())
