"""A learner that memory can't hold is refused before anything is made, and what it needs is what it takes."""

from pathlib import Path

import pytest
import torch
from breaking import quiet
from tiny import tiny_settings

from ccl.catalogue import OBJECTIVES
from ccl.compatibility import refusal
from ccl.errors import UserError
from ccl.runs import learner_size, run
from ccl.runs.build import build_learner, build_plan
from ccl.runs.grid_cells import Cell
from ccl.runs.learner_size import learner_bytes, refuse_large_cells, refuse_too_large
from ccl.strategies import STRATEGIES

CPU, GIGABYTES = torch.device("cpu"), 16 * 10**9


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_size, "machine_memory", lambda: GIGABYTES)


@pytest.mark.parametrize(
    ("strategy", "objective"),
    [(strategy, "moco_v2") for strategy in STRATEGIES] + [("finetuning", name) for name in OBJECTIVES],
)
def test_it_is_what_the_learner_takes(strategy: str, objective: str) -> None:
    assert not refusal(strategy, STRATEGIES[strategy], objective)
    settings = tiny_settings(f"strategy={strategy}", f"objective={objective}")
    learner = build_learner(settings, CPU)
    optimizer = build_plan(settings).make_optimizer(learner)
    for parameter in learner.trained_parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    taken = sum(tensor.nbytes for tensor in [*learner.state_dict().values(), *gradients, *moments])
    assert learner_bytes(settings) == taken


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["strategy=cassle", "predictive_distillation.hidden=100000000000"], "predictive_distillation.hidden"),
        (["strategy=cla", f"alignment.hidden={10**30}"], "alignment.hidden"),
        (["strategy=pnr", "pnr.hidden=100000000000"], "pnr.hidden"),
        (["strategy=finetuning", "objective=byol", "byol.predictor_width=100000000000"], "byol.predictor_width"),
        (["objective=simsiam", "strategy=pfr", "simsiam.predictor_width=10000000000"], "simsiam.predictor_width"),
        (["strategy=finetuning", "objective=mae", "mae.decoder_width=100000000000"], "mae.decoder_width"),
        (["strategy=ccl", "extra_sample_queue.size=100000000000"], "extra_sample_queue.size"),
        (["strategy=finetuning", "encoder.head_width=100000000000"], "encoder.head_width"),
    ],
)
def test_what_is_too_wide_is_refused_in_one_line_with_a_size_that_fits(options: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        refuse_too_large(tiny_settings(*options), CPU)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{told} 10000")
    assert "and this machine has 16.0 GB; nearest power of two that fits: " in line
    advice = line.rpartition(": ")[2]
    assert advice.startswith(f"{told}=")
    fits = tiny_settings(*options, advice)
    refuse_too_large(fits, CPU)
    twice = 2 * int(advice.rpartition("=")[2])
    assert learner_bytes(fits) <= GIGABYTES < learner_bytes(tiny_settings(*options, f"{told}={twice}"))


def test_where_no_single_number_is_to_blame_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    two = tiny_settings("strategy=cassle", "predictive_distillation.hidden=10000000000", "encoder.dim=10000000000")
    with pytest.raises(UserError, match=r"set smaller sizes, such as [a-z_.]+=64$"):
        refuse_too_large(two, CPU)
    monkeypatch.setattr(learner_size, "machine_memory", lambda: 1000)
    with pytest.raises(UserError, match=r"^encoder.backbone convnet needs .* has 0.0 GB; set a smaller one$"):
        refuse_too_large(tiny_settings("strategy=finetuning", "moco_v2.queue_size=2"), CPU)
    monkeypatch.setattr(learner_size, "machine_memory", lambda: 0)  # nobody knows
    refuse_too_large(two, CPU)


def test_a_run_of_it_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hidden 100000000000 needs"):
        run(tiny_settings("strategy=cassle", "predictive_distillation.hidden=100000000000"), tmp_path / "run", quiet())
    assert not list(tmp_path.iterdir())


def test_a_grid_with_one_such_run_does_not_begin() -> None:
    names = ("finetuning", "cassle")
    settings = [tiny_settings(f"strategy={name}", "predictive_distillation.hidden=100000000000") for name in names]
    cells = [Cell(name, name, 0, one) for name, one in zip(names, settings, strict=True)]
    refuse_large_cells(cells[:1])
    with pytest.raises(UserError, match="hidden 100000000000 needs"):
        refuse_large_cells(cells)
