"""The paper's artefacts as grids: every one of them, at both scales, with the paper's settings."""

import pytest

from ccl.errors import UserError
from ccl.runs.grid_cells import make_cells
from ccl.runs.paper_artefacts import ARTEFACTS, choose

NAMES = ["table1", "ablation", "queue-size", "clusters", "objectives", "figure1a", "figure1b", "transfer"]


def test_every_artefact_of_the_paper_is_there_at_both_scales() -> None:
    assert list(ARTEFACTS) == NAMES
    for name in NAMES:
        for scale in ("mini", "paper"):
            grid = choose(name, scale, None)[2]
            assert make_cells(grid)


def test_table_1_at_the_paper_s_scale_is_the_paper_s() -> None:
    grid = choose("table1", "paper", None)[2]
    cells = make_cells(grid)
    found = {(cell.settings.strategy, cell.settings.steps, cell.seed) for cell in cells}
    streamed = {(s, t, seed) for s in ("finetuning", "simple_rehearsal", "ccl") for t in (5, 10) for seed in range(6)}
    assert found == streamed | {("upper_bound", 5, seed) for seed in range(6)}  # all at once: no T
    for cell in cells:
        settings = cell.settings
        assert (settings.dataset, settings.epochs, settings.batch_size) == (["cifar100"], 200, 512)
        assert settings.encoder.width is None
    full = make_cells(choose("table1", "paper", "imagenet-full")[2])
    assert {cell.settings.encoder.backbone for cell in full} == {"resnet50"}


def test_the_ablation_removes_one_part_after_the_other() -> None:
    grid = choose("ablation", "paper", None)[2]
    assert [cell.settings.strategy for cell in make_cells(grid)] == [
        "finetuning",
        "simple_rehearsal",
        "variance_rehearsal",
        "variance_distillation",
        "ccl",
    ]


def test_sweeps_run_over_their_axis_and_share_the_preset_s_own_cell() -> None:
    cells = make_cells(choose("queue-size", "mini", "domain")[2])
    of_first = [cell for cell in cells if cell.seed == 0]
    assert [cell.settings.extra_sample_queue.size for cell in of_first] == [
        8,
        16,
        32,
        64,
        128,
    ]
    shared = {cell.name for cell in make_cells(choose("table1", "mini", "domain")[2])}
    assert [cell.settings.extra_sample_queue.size for cell in of_first if cell.name in shared] == [32]


def test_the_mini_streams_are_real_cifar() -> None:
    for stream in ("domain", "class"):
        grid = choose("table1", "mini", stream)[2]
        assert all("cifar100" in cell.settings.dataset for cell in make_cells(grid))


def test_axes_can_be_narrowed() -> None:
    cells = make_cells(choose("table1", "mini", "class", [7], [2])[2])
    assert {(cell.seed, cell.settings.steps) for cell in cells} == {(7, 2)}


def test_what_does_not_exist_is_refused_with_advice() -> None:
    with pytest.raises(UserError, match=r"unknown artefact 'tabel1'; did you mean 'table1'"):
        choose("tabel1", "mini")
    with pytest.raises(UserError, match=r"figure1b at scale mini has no --stream domain; choose from class"):
        choose("figure1b", "mini", "domain")
