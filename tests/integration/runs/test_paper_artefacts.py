"""The paper's artefacts as grids: every one of them, at both scales, with the paper's settings and its own probe."""

import csv
import functools
from pathlib import Path

import pytest
from breaking import quiet
from tiny import TINY

from ccl import run
from ccl.errors import UserError
from ccl.evaluation import fit_paper
from ccl.report.paper_artefacts import ARTEFACTS, choose
from ccl.report.run_page import write_outcome
from ccl.report.tables import text
from ccl.runs import probing
from ccl.runs.grid_cells import make_cells

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
    assert [cell.settings.extra_sample_queue.size for cell in of_first] == [8, 16, 32, 64, 128]
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


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_s_scale_is_probed_as_the_paper_does(name: str) -> None:
    """Forgetting and Forward Transfer need the whole matrix; the small scale keeps the cached probe."""
    about = ARTEFACTS[name]
    for which in about.grids["paper"]:
        probes = {cell.settings.probe for cell in make_cells(choose(name, "paper", which)[2])}
        (probe,) = probes
        assert (probe.paper_protocol, probe.matrix) == ((False, "paper") if name == "transfer" else (True, "cached"))
    small = {cell.settings.probe for cell in make_cells(choose(name, "mini")[2])}
    assert {(probe.paper_protocol, probe.matrix) for probe in small} == {(False, "cached")}


def test_two_artefacts_with_different_probes_have_different_folders_and_set_has_the_last_word() -> None:
    table, transfer = (choose(name, "paper", "imagenet-sub")[2] for name in ("table1", "transfer"))
    assert not {cell.name for cell in make_cells(table)} & {cell.name for cell in make_cells(transfer)}
    shared = {cell.name for cell in make_cells(choose("ablation", "paper")[2])}
    assert shared & {cell.name for cell in make_cells(table)}  # equal probes: these runs are made once
    cell = make_cells(table, ["probe.paper_protocol=false"])[0]
    assert not cell.settings.probe.paper_protocol
    assert cell.name == "finetuning-moco_v2-T5-seed0"


SMALL = (*TINY, "encoder.backbone=convnet", "encoder.batch_norm_groups=1", "views.size=16", "device=cpu", "threads=1")


def test_tables_at_the_paper_s_scale_show_the_paper_s_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny stream by the settings of such a cell: its headline is SGD's, the cached accuracies stand apart."""
    monkeypatch.setattr(probing, "fit_paper", functools.partial(fit_paper, epochs=3))
    about, _, grid = choose("table1", "paper", seeds=[0], steps=[2])
    chosen = [cell for cell in make_cells(grid, SMALL) if cell.settings.strategy in ("finetuning", "upper_bound")]
    records = [run(cell.settings, tmp_path / cell.name, quiet()) for cell in chosen]
    tables = write_outcome(records, tmp_path, "Table 1", name="table1", published=about.published)
    headlines = [row["accuracy"] for record in records for row in record.rows if row["kind"] == "paper_probe"]
    assert len(headlines) == 2
    assert tables[0].title == "Accuracy of the paper's linear probe after the last step"
    found = {row[0]: text(row[1]) for row in tables[0].rows}  # and none of another protocol
    assert found == {"Finetuning": f"{headlines[0]:.1f}", "Upper Bound": f"{headlines[1]:.1f}"}
    assert not {"Forgetting ↓", "Plasticity (%)"} & set(tables[0].columns)
    assert "SGD with learning rate 30 over 100 epochs" in tables[0].note
    assert tables[-2] == about.published
    assert tables[-1].title == "Along the stream: accuracy of the cached probe"
    cached = [float(record.accuracy.all_class_total[-1]) for record in records if record.accuracy]
    assert [text(row[1]) for row in tables[-1].rows[:2]] == [f"{value:.1f}" for value in cached]
    with (tmp_path / "table1-runs.csv").open(newline="") as file:
        assert [float(row["All classes (%)"]) for row in csv.DictReader(file)] == pytest.approx(headlines, abs=5e-4)


def test_a_matrix_by_the_paper_s_protocol_has_its_probe_in_every_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number is that of SGD on the images concerned, and Forgetting is computed from these."""
    calls: list[int] = []

    def fit(*a: object, **k: object) -> object:
        calls.append(len(a[1]))  # type: ignore[arg-type]
        return fit_paper(*a, **k, epochs=2)  # type: ignore[arg-type]

    monkeypatch.setattr(probing, "fit_paper", fit)
    grid = choose("transfer", "paper", seeds=[0], steps=[2])[2]
    record = run(make_cells(grid, [*SMALL, "epochs=1"])[0].settings, tmp_path / "run", quiet())
    assert calls == [24, 24, 48] * 3  # before training and after each step: two steps' own, and all classes
    assert not record.accuracy.per_step.isnan().any()
    protocols = {row["protocol"] for row in record.rows if row["kind"] == "probe"}
    assert len(protocols) == 1
    assert protocols.pop().startswith("linear, paper: SGD")
    assert not [row for row in record.rows if row["kind"] == "paper_probe"]
