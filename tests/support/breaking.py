"""Runs that break off and are started again, and what must then be the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from ccl import run
from ccl.runs.display import PlainDisplay
from ccl.runs.run_folder import TIMES
from ccl.settings import Settings
from ccl.training.checkpoint import CheckpointStore


class BrokenError(Exception):
    """Stands for a kill: nothing is saved when it is raised."""


def quiet() -> PlainDisplay:
    return PlainDisplay(Console(quiet=True))


def listening() -> tuple[PlainDisplay, list[str]]:
    """A quiet display, and the notes that it is given."""
    display, notes = quiet(), list[str]()
    display.note = notes.append  # type: ignore[method-assign]
    return display, notes


def outcome(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, object]], str]:
    """Every tensor of the last checkpoint, the metric rows without their seconds, and the accuracies."""
    checkpoint = CheckpointStore(folder / "checkpoints").newest()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    tensors = checkpoint.tensors | load_file(folder / "encoder.safetensors")
    return tensors, rows, (folder / "accuracy.csv").read_text()


def assert_same(first: Path, second: Path) -> None:
    (tensors, rows, accuracy), (other_tensors, other_rows, other_accuracy) = outcome(first), outcome(second)
    assert tensors.keys() == other_tensors.keys()
    for name, value in tensors.items():
        assert value.dtype == other_tensors[name].dtype
        assert value.numpy().tobytes() == other_tensors[name].numpy().tobytes(), name  # bits: nan equals nan
    assert rows == other_rows
    assert accuracy == other_accuracy


def break_after(count: int) -> Callable[[], None]:
    """Something to call at every update and probe that raises at the count-th call."""
    calls = iter(range(count))

    def call() -> None:
        if next(calls, None) is None:
            raise BrokenError

    return call


def run_broken(settings: Settings, folder: Path, breaks: list[int]) -> None:
    """Break the run off after so many events, each time anew, and let the last one finish."""
    for count in breaks:
        display, call = quiet(), break_after(count)
        updated, probing = display.updated, display.probing

        def broken_update(*a: object, call: Callable[[], None] = call, updated: object = updated) -> None:
            updated(*a)  # type: ignore[operator]
            call()

        def broken_probing(*a: object, call: Callable[[], None] = call, probing: object = probing) -> None:
            call()

        display.updated = broken_update  # type: ignore[method-assign, assignment]
        display.probing = broken_probing  # type: ignore[method-assign, assignment]
        try:
            run(settings, folder, display)
        except BrokenError:
            continue
        return
    run(settings, folder, quiet())


def run_broken_once(settings: Settings, folder: Path) -> None:
    """Break the run off at the end of its third epoch."""
    display, call = quiet(), break_after(2)
    display.epoch_ends = lambda *_: call()  # type: ignore[method-assign]
    with pytest.raises(BrokenError):
        run(settings, folder, display)
