"""The time that a run still takes, as its lines report it."""

import io
import re

import pytest
from rich.console import Console

from ccl.runs import display
from ccl.runs.display import PlainDisplay, RichDisplay


def test_the_time_left_follows_the_images_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(display.time, "perf_counter", lambda: clock[0])
    written = io.StringIO()
    shown = PlainDisplay(Console(file=written, width=200))
    shown.run_begins("finetuning", [900, 100], epochs=4)
    shown.step_begins(0, 900, 0, True)
    shown.updated(0, 0, {"contrast": 1.0}, 0, 0.0)
    clock[0] = 90.0  # three of the first step's four epochs: 2,700 of 4,000 images
    shown.epoch_ends(0, 2, 0.1)
    clock[0] = 120.0
    shown.epoch_ends(0, 3, 0.1)  # 3,600 images in 120 s: 400 are left
    assert re.findall(r"([\d:]+) left", written.getvalue()) == ["00:43", "00:13"]


def test_a_later_drop_is_all_there_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(display.time, "perf_counter", lambda: clock[0])
    written = io.StringIO()
    shown = PlainDisplay(Console(file=written, width=200))
    shown.run_begins("week 3", [0, 0, 50], epochs=10, first_step=2)
    shown.step_begins(2, 50, 0, True)
    shown.updated(2, 0, {}, 0, 0.0)
    clock[0] = 20.0
    shown.epoch_ends(2, 3, 0.1)
    assert "00:30 left" in written.getvalue()


@pytest.mark.parametrize("made", [PlainDisplay, RichDisplay])
def test_a_failure_with_brackets_can_be_shown(made: type[PlainDisplay] | type[RichDisplay]) -> None:
    console = Console(force_terminal=True, width=200, color_system=None, record=True)
    made(console).note("failed (OSError: [/tmp/x] [bold]not there)")
    assert "failed (OSError: [/tmp/x] [bold]not there)" in console.export_text()
