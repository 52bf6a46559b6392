"""One batch-norm group over several processes: two ranks equal one process with one group, gradients included."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rank_tasks
import torch
import torch.nn.functional as F
from in_ranks import assert_equal_outcomes, in_ranks
from tiny import tiny_settings
from torch import Tensor, nn

from ccl.catalogue import OBJECTIVES, RETENTION
from ccl.encoders import MomentumEncoder, SplitBatchNorm
from ccl.errors import UserError
from ccl.reading import build_device
from ccl.runs.build import build_learner
from ccl.runs.stream_builder import build_stream

ONE = "encoder.batch_norm_groups=1"
EVEN = "memory.per_cluster=3"  # 24 new and 12 old images: batches of 12 in one process too, and not of 11, 11 and 10
COMBINATIONS = [
    (ONE, EVEN, "strategy=ccl"),
    (ONE, EVEN, "strategy=ccl", "objective=simclr", "epochs=1"),
    (ONE, EVEN, "strategy=variance_distillation", "objective=byol", "epochs=1"),
]
pytestmark = pytest.mark.timeout(280)


def some_rows() -> list[Tensor]:
    """Features (N, C) and images (N, C, H, W), far from zero, where squares alone would lose digits."""
    draws = torch.Generator().manual_seed(0)
    shapes = [(10, 4), (7, 3, 5, 2)]
    return [100 + torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes]


@cache
def spread(folder: Path) -> list[dict[str, Any]]:
    return in_ranks(2, rank_tasks.synchronised, some_rows(), COMBINATIONS, folder=folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return spread(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("number", [0, 1])
def test_rows_and_gradients_are_those_of_torch_s_batch_norm_over_all_rows(
    number: int, found: list[dict[str, Any]]
) -> None:
    rows = some_rows()[number].requires_grad_()
    owners = torch.arange(len(rows)) % 3 == 2
    weight = torch.linspace(0.5, 2.0, rows.shape[1], dtype=rows.dtype)
    scale, shift = weight.clone().requires_grad_(), (weight - 1).requires_grad_()
    mean, variance = torch.zeros_like(weight), torch.zeros_like(weight)
    normed = F.batch_norm(rows, mean, variance, scale, shift, training=True, momentum=1.0)
    losses = normed[~owners].sin().sum() + 2 * normed[owners].sin().sum()
    losses.backward()
    for rank, mine in enumerate((~owners, owners)):
        about = found[rank]["normalised"][number]
        expected = {"rows": normed[mine], "mean": mean, "variance": variance, "input": rows.grad[mine]}
        expected |= {"weight": scale.grad / 2, "bias": shift.grad / 2}  # averaged over two ranks
        for name, value in expected.items():
            close = 1e-6 if name in ("weight", "bias") else 1e-9  # these two travel in float32
            torch.testing.assert_close(
                about[name], value.detach(), rtol=close, atol=close, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=[" ".join(case) for case in COMBINATIONS])
def test_two_ranks_equal_one_process_with_one_group(number: int, found: list[dict[str, Any]]) -> None:
    (alone,) = rank_tasks.learn_all([COMBINATIONS[number]])
    assert_equal_outcomes(alone, [rank["learned"][number] for rank in found])


def test_batch_norms_of_encoder_copies_and_objective_are_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(ONE, "strategy=variance_distillation", "objective=byol")
    plain = build_learner(settings, build_device(settings))
    assert not any(isinstance(module, SplitBatchNorm) for module in plain.modules())
    monkeypatch.setattr("ccl.ranks.size", lambda: 2)
    norms = [
        m
        for m in build_learner(settings, build_device(settings)).modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    assert len(norms) == sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in plain.modules()) > 0
    assert all(isinstance(norm, SplitBatchNorm) and norm.synchronised for norm in norms)


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        (
            ["strategy=cassle"],
            "encoder.batch_norm_groups 1 over 2 processes is not possible with the batch norms of "
            "predictive_distillation; set it to 2",
        ),
        (
            ["performance.compile=true"],
            "encoder.batch_norm_groups 1 over 2 processes is not possible with performance.compile; set it to 2",
        ),
        (["batch_size=11"], "batch_size 11 can't be spread over 2 processes; nearest valid value: 10"),
    ],
)
def test_what_cannot_be_one_group_is_refused(
    assignments: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl.ranks.size", lambda: 2)
    with pytest.raises(UserError) as caught:
        build_stream(tiny_settings(ONE, *assignments))
    assert str(caught.value) == line


@pytest.mark.parametrize("name", RETENTION)
def test_the_catalogue_says_which_parts_have_batch_norms_of_their_own(name: str) -> None:
    """Beside copies of the encoder, whose batch norms are the encoder's."""
    settings = tiny_settings("strategy=simple_rehearsal", f"retention={name}", f"objective={next(iter(OBJECTIVES))}")
    part = build_learner(settings, build_device(settings)).parts[name]
    copies = {
        id(inner) for module in part.modules() if isinstance(module, MomentumEncoder) for inner in module.modules()
    }
    own = [m for m in part.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and id(m) not in copies]
    assert bool(own) == RETENTION[name].has_norms
