"""A run that is broken off anywhere and started again gives the very bits of the unbroken run."""

import importlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from breaking import BrokenError, assert_same, listening, quiet, run_broken, run_broken_once
from combinations import ALL_PAIRS
from tiny import tiny_settings

from ccl import run
from ccl.errors import StoppedError, UserError
from ccl.training import Learner
from ccl.training import loop as loop_module
from ccl.training.checkpoint import CheckpointStore

run_module = importlib.import_module("ccl.runs.one_run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unbroken run; how often it saves must not matter."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(tiny_settings("strategy=ccl", "checkpoint.minutes=100"), folder, quiet())
    return folder


def slow(*options: str) -> Any:
    """Options that `make test-slow` tries."""
    return pytest.param(options, marks=pytest.mark.slow)


@pytest.mark.parametrize(("strategy", "objective"), ALL_PAIRS)
def test_every_strategy_and_objective_resumes_bit_for_bit(strategy: str, objective: str, tmp_path: Path) -> None:
    frequent = f"checkpoint.minutes={random.Random(strategy + objective).choice([1e-9, 1.0])}"
    settings = tiny_settings(f"strategy={strategy}", f"objective={objective}", frequent)
    run(settings, tmp_path / "whole", quiet())
    draw = random.Random(strategy + objective)
    run_broken(settings, tmp_path / "broken", [draw.randint(1, 14) for _ in range(3)])
    assert_same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("minutes", [1e-9, 100.0])
def test_a_run_broken_off_again_and_again_comes_to_the_same_end(minutes: float, whole: Path, tmp_path: Path) -> None:
    settings = tiny_settings("strategy=ccl", f"checkpoint.minutes={minutes}")
    # Without frequent saves a break every few events would never get on: it must live to the next epoch's end.
    run_broken(settings, tmp_path / "broken", [3 if minutes < 1 else 9] * 12)
    assert_same(whole, tmp_path / "broken")


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("place", ["remember", "begin_step", "save"])
def test_a_break_inside_a_selection_a_step_change_or_a_save(
    place: str, is_done_first: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the thing is done, and after it is done and not yet saved."""
    settings = tiny_settings("strategy=ccl")
    owner = {"remember": loop_module, "begin_step": Learner, "save": CheckpointStore}[place]
    original, calls = getattr(owner, place), iter(range(1))  # the second time it breaks

    def breaking(*a: object, **k: object) -> object:
        if next(calls, None) is not None:
            return original(*a, **k)
        if is_done_first:
            original(*a, **k)
        raise BrokenError

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, breaking)
        with pytest.raises(BrokenError):
            run(settings, tmp_path / "broken", quiet())
    run(settings, tmp_path / "broken", quiet())
    assert_same(whole, tmp_path / "broken")


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=ccl", "memory.budget=5", "memory.clusters=estimate"),
        ("strategy=simple_rehearsal", "memory.selection=reservoir", "memory.budget=5"),
        ("strategy=cla", "alignment.target=stored", "memory.budget=5"),
        ("strategy=ccl", "objective=insdisc"),
        slow("strategy=ccl", "memory.budget=4 kB"),
        slow("strategy=simple_rehearsal", "memory.budget=5"),
        slow("strategy=simple_rehearsal", "memory.clusters=estimate"),
        slow("strategy=ccl", "memory.selection=herding", "memory.budget=5"),
        slow("strategy=ccl", "memory.selection=minred", "memory.budget=4 kB"),
        slow("strategy=cassle", "predictive_distillation.predictor=restart", "predictive_distillation.space=features"),
        slow("strategy=osiris", "cross_task.past=distillation"),
        slow("strategy=ccl", "moco_v2.symmetric=true"),
    ],
    ids=" ".join,
)
def test_other_ways_of_keeping_the_past_come_to_the_same_after_a_break(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    settings = tiny_settings(*options, "dataset=symbols,textures,greek", "epochs=1", "checkpoint.minutes=1e-9")
    record = run(settings, tmp_path / "whole", quiet())
    if settings.memory.budget is not None:
        assert [row["step"] for row in record.rows if row["kind"] == "memory"] == [1, 2, 3]
    run_broken(settings, tmp_path / "broken", [7, 5, 4])
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_workers_may_change_and_nothing_that_is_learned_may(whole: Path, tmp_path: Path) -> None:
    settings = tiny_settings("strategy=ccl")
    run_broken(settings, tmp_path / "run", [12])
    with pytest.raises(UserError, match=r"temperature: 0\.1 -> 0\.2; memory\.per_cluster: 2 -> 1"):
        run(tiny_settings("strategy=ccl", "temperature=0.2", "memory.per_cluster=1"), tmp_path / "run", quiet())
    run(tiny_settings("strategy=ccl", "data.workers=1", "checkpoint.minutes=3"), tmp_path / "run", quiet())
    assert_same(whole, tmp_path / "run")


def test_the_epochs_to_come_may_change_and_it_is_written_down(tmp_path: Path) -> None:
    settings = tiny_settings("strategy=ccl", "checkpoint.minutes=1e-9")
    run_broken_once(settings, tmp_path / "run")  # at the end of the second step's first epoch
    record = run(tiny_settings("strategy=ccl", "checkpoint.minutes=1e-9", "epochs=3"), tmp_path / "run", quiet())
    epochs = [(row["step"], row["epoch"]) for row in record.rows if row["kind"] == "epoch"]
    assert epochs == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    assert [row["epochs"] for row in record.rows if row["kind"] == "changed"] == [[2, 3]]
    assert record.settings.epochs == 3


def test_another_number_of_threads_is_said_to_change_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings("strategy=finetuning")
    run_broken_once(settings, tmp_path / "run")
    display, notes = listening()
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    run(settings, tmp_path / "run", display)
    assert any(note.startswith("threads changed since the checkpoint (1 -> 7)") for note in notes)


def test_changed_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings("strategy=finetuning")
    run_broken_once(settings, tmp_path / "run")
    real = run_module.build_stream
    other = tiny_settings("strategy=finetuning", "data.images_per_class=5")
    monkeypatch.setattr(run_module, "build_stream", lambda _, progress: real(other, progress))
    with pytest.raises(UserError, match="the data is not what this run began with"):
        run(settings, tmp_path / "run", quiet())
    monkeypatch.undo()
    assert run(settings, tmp_path / "run", quiet()).status["state"] == "complete"


def test_a_corrupt_checkpoint_is_passed_over_and_named(whole: Path, tmp_path: Path) -> None:
    settings = tiny_settings("strategy=ccl", "checkpoint.minutes=1e-9")
    run_broken_once(settings, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1] / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    display, notes = listening()
    run(settings, tmp_path / "run", display)
    assert any("skipped a bad checkpoint" in note and "state.safetensors" in note for note in notes)
    assert_same(whole, tmp_path / "run")


EVENTS = random.Random(0).sample(range(34), 10)  # of 34 batches and bits of probes


@pytest.mark.parametrize(
    ("number", "event"),
    [
        pytest.param(number, event, marks=() if position % 2 == number % 2 else pytest.mark.slow)
        for number in (signal.SIGTERM, signal.SIGINT)  # 15 and 2
        for position, event in enumerate(EVENTS)
    ],
)
def test_a_signal_saves_leaves_and_the_same_call_goes_on(
    number: signal.Signals, event: int, whole: Path, tmp_path: Path
) -> None:
    settings = tiny_settings("strategy=ccl", "checkpoint.minutes=100")
    calls = iter(range(event))
    display = quiet()

    def raise_signal(*_: object) -> None:
        if next(calls, None) is None:
            signal.raise_signal(number)

    display.updated = raise_signal  # type: ignore[method-assign, assignment]
    display.probing = raise_signal  # type: ignore[method-assign, assignment]
    with pytest.raises(StoppedError) as stopped:
        run(settings, tmp_path / "run", display)
    assert stopped.value.exit_code == 128 + number
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", f"stopped by {number.name}")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    run(settings, tmp_path / "run", quiet())
    assert_same(whole, tmp_path / "run")


def test_a_second_ctrl_c_leaves_at_once() -> None:
    code = (
        "import signal; from ccl.training.stop_signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    stop.is_immediate = False\n"
        "    signal.raise_signal(signal.SIGINT); print('saving', flush=True)\n"
        "    signal.raise_signal(signal.SIGINT); print('never', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "saving\n")


def test_a_second_sigterm_does_not_end_the_writing_down_of_the_first() -> None:
    """Slurm signals a job and its steps; what the first one leaves must still be recorded."""
    code = (
        "import os, signal\nfrom ccl.errors import StoppedError\nfrom ccl.training.stop_signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    stop.is_immediate = True\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except StoppedError:\n        os.kill(os.getpid(), signal.SIGTERM)\n        print('recorded')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "recorded\n", done.stderr
