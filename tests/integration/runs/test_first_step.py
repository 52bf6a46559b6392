"""Runs that begin alike share their first step, and end with the bits that they would have alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking import assert_same
from tiny import tiny_settings

from ccl.catalogue import RETENTION
from ccl.run_files import METRICS
from ccl.runs import run
from ccl.runs.cell_run import CellRun
from ccl.runs.grid import _in_turn
from ccl.runs.grid_cells import Grid, make_cells
from ccl.runs.launchers import LocalRun
from ccl.settings import Settings, beginning, has_common_beginning
from ccl.strategies import STRATEGIES
from ccl.training import Observer
from ccl.training.checkpoint import STATE

FAST = ("simple_rehearsal", "cassle", "osiris", "ccl")


class Notes(Observer):
    """Writes down what a person would read."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def first_steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which Finetuning has left its first step."""
    folder = tmp_path_factory.mktemp("first-steps")
    run(tiny_settings("strategy=finetuning"), tmp_path_factory.mktemp("run") / "finetuning", first_steps=folder)
    return folder


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in STRATEGIES],
)
def test_a_shared_first_step_changes_no_bit(strategy: str, first_steps: Path, tmp_path: Path) -> None:
    settings = tiny_settings(f"strategy={strategy}")
    notes: list[str] = []
    run(settings, tmp_path / "alone")
    run(settings, tmp_path / "shared", Notes(notes), first_steps)
    assert_same(tmp_path / "shared", tmp_path / "alone")
    assert any("taken from another run" in line for line in notes) == has_common_beginning(settings)


def test_strategies_that_learn_from_the_first_step_itself_have_their_own() -> None:
    alone = {name for name in STRATEGIES if not has_common_beginning(tiny_settings(f"strategy={name}"))}
    assert alone == {"ccl", "variance_queue", "random_ccl", "cla", "weight_averaging", "upper_bound"}
    assert {name for name, row in RETENTION.items() if row.learns_in_first_step} == {"extra_sample_queue", "alignment"}


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        (["strategy=cassle"], True),
        (["strategy=simple_rehearsal", "memory.per_cluster=1"], True),
        (["strategy=shared_rehearsal", "share.old=0.1", "weights.contrast=0.5"], True),
        (["data.workers=1", "checkpoint.minutes=1"], True),
        (["encoder.statistics=accumulated"], True),
        (["seed=1"], False),
        (["objective=simclr"], False),
        (["epochs=3"], False),
        (["moco_v2.queue_size=16"], False),
        (["data.seed=4"], False),
        (["threads=2"], False),
        (["encoder.width=8"], False),
        (["optimizer.learning_rate=0.1"], False),
        (["probe.after=last"], False),
    ],
)
def test_what_must_be_alike(changes: list[str], is_same: bool) -> None:
    def of(*words: str) -> Settings:
        return tiny_settings("strategy=finetuning", *words)

    assert (beginning(of(*changes)) == beginning(of())) == is_same


def test_a_damaged_first_step_is_learned_again(first_steps: Path, tmp_path: Path) -> None:
    settings, copied = tiny_settings("strategy=simple_rehearsal"), tmp_path / "first-steps"
    (file,) = first_steps.glob(f"*/*/{STATE}")
    damaged = copied / file.relative_to(first_steps)
    for path in file.parent.iterdir():
        target = damaged.with_name(path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    notes: list[str] = []
    run(settings, tmp_path / "alone")
    run(settings, tmp_path / "shared", Notes(notes), copied)
    assert_same(tmp_path / "shared", tmp_path / "alone")
    assert not any("taken from another run" in line for line in notes)


def test_a_grid_starts_what_can_share_a_first_step_after_it_is_learned(tmp_path: Path) -> None:
    grid = Grid("demo", ["finetuning", "simple_rehearsal", "cassle", "ccl"], [0, 1])
    runs = [CellRun(cell, tmp_path) for cell in make_cells(grid, [])]
    runs[0].process = LocalRun([sys.executable, "-c", ""])  # Finetuning, seed 0, is in its first step

    def names() -> list[str]:
        return [run.cell.name.replace("-moco_v2-seed", " ") for run in _in_turn(runs)]

    sharing = ["simple_rehearsal 1", "cassle 1"]  # of Finetuning, seed 1, which is started before them
    assert names() == ["ccl 0", "finetuning 1", "ccl 1", "simple_rehearsal 0", "cassle 0", *sharing]
    runs[0].folder.mkdir()
    (runs[0].folder / METRICS).write_text('{"kind": "epoch", "step": 2, "epoch": 1}\n')
    assert names() == ["simple_rehearsal 0", "cassle 0", "ccl 0", "finetuning 1", "ccl 1", *sharing]
    runs[0].process.wait()
