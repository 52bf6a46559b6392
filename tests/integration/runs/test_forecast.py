"""What is foretold of a run: counts by hand, memory by the learner itself."""

from pathlib import Path

import pytest
import torch
from breaking import quiet
from tiny import tiny_settings

from ccl import run
from ccl.catalogue import OBJECTIVES
from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.runs import forecast
from ccl.runs.build import build_learner, build_plan
from ccl.runs.forecast import clock, learner_bytes, num_remembered, refuse_too_large, seconds_here, work_of
from ccl.strategies import STRATEGIES

CPU, GIGABYTES = torch.device("cpu"), 16 * 10**9


def test_images_are_counted_with_the_memory_of_earlier_steps() -> None:
    settings = load_settings("cifar100", ["strategy=simple_rehearsal", "epochs=2"])
    found = work_of(settings)
    # 20 classes a step, 20 images kept of each: 400 more in each step
    assert found.num_images == 2 * (5 * 10_000 + 400 * (0 + 1 + 2 + 3 + 4))
    assert found.share_old == pytest.approx(4000 / 54_000)
    for strategy in ("finetuning", "upper_bound"):
        assert work_of(load_settings("cifar100", [f"strategy={strategy}", "epochs=2"])).num_images == 2 * 50_000
    assert work_of(load_settings("cifar100", ["strategy=finetuning"])).num_updates == 5 * 200 * 20  # 10,000 ÷ 512


def test_a_budget_bounds_the_memory_that_is_counted() -> None:
    def kept(*changes: str) -> list[int]:
        settings = load_settings("cifar100", ["strategy=simple_rehearsal", *changes])
        return num_remembered(settings, [10_000] * 4, [20] * 4)

    assert kept("memory.clusters=estimate") == kept() == [0, 400, 800, 1200]
    assert kept("memory.clusters=7") == [0, 140, 280, 420]
    assert kept("memory.budget=500") == [0, 500, 500, 500]
    assert kept("memory.budget=15000") == [0, 10_000, 15_000, 15_000]
    assert kept("memory.budget=3 MB") == [0, *[3_000_000 // (3 * 32 * 32)] * 3]


def test_sizes_are_known_by_name_or_counted() -> None:
    assert work_of(load_settings("imagenet-full", ["epochs=1", "strategy=upper_bound"])).num_images == pytest.approx(
        1_281_167, rel=1e-3
    )
    few = ["dataset=digits,capitals", "batch_size=16", "data.images_per_class=7", "data.classes={digits: 3}"]
    counted = work_of(load_settings("demo", [*few, "epochs=1", "strategy=upper_bound"]))
    assert counted.num_images == 91


def test_a_rate_is_measured_with_views_for_every_objective() -> None:
    for objective in OBJECTIVES:
        settings = load_settings("demo", ["strategy=simple_rehearsal", f"objective={objective}", "batch_size=16"])
        assert 1e-6 < seconds_here(settings, 0.2, patience=0.05) < 0.1


def test_durations_in_words() -> None:
    told = [clock(value) for value in (45, 600, 7200, 864_000)]
    assert told == ["45 seconds", "10 minutes", "2.0 hours", "10.0 days"]


@pytest.mark.parametrize(
    ("strategy", "objective"),
    [(strategy, "moco_v2") for strategy in STRATEGIES] + [("finetuning", name) for name in OBJECTIVES],
)
def test_the_size_is_what_the_learner_takes(strategy: str, objective: str) -> None:
    settings = tiny_settings(f"strategy={strategy}", f"objective={objective}")
    learner = build_learner(settings, CPU)
    optimizer = build_plan(settings).make_optimizer(learner)
    for parameter in learner.trained_parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    taken = sum(tensor.nbytes for tensor in [*learner.state_dict().values(), *gradients, *moments])
    assert sum(learner_bytes(settings).values()) == taken


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["strategy=cassle", "predictive_distillation.hidden=100000000000"], "tensors: predictive_distillation"),
        (["strategy=finetuning", "objective=byol", "byol.predictor_width=100000000000"], "largest tensors: objective"),
        (["strategy=ccl", "extra_sample_queue.size=100000000000"], "largest tensors: extra_sample_queue"),
        (["strategy=finetuning", "encoder.head_width=10000000000"], "largest tensors: encoder.head"),
        (["strategy=cla", f"alignment.hidden={10**18}"], "larger than any memory"),
    ],
)
def test_what_is_too_large_is_refused_in_one_line(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda device: GIGABYTES)
    with pytest.raises(UserError, match=told) as caught:
        run(tiny_settings(*options), tmp_path / "run", quiet())
    (line,) = str(caught.value).splitlines()
    assert "set smaller sizes" in line
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(forecast, "device_memory", lambda device: 0)  # nobody knows
    if "any" not in told:
        refuse_too_large(tiny_settings(*options), CPU)
