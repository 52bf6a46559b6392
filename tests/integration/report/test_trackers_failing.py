"""A tracker that is missing is refused, one that fails is left behind, and a run shows what it writes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import tracker_fakes as fakes
from rich.console import Console
from tracker_story import WHOLE, Open, learn, log_of, without_times

from ccl.errors import StoppedError, UserError
from ccl.loading import load_settings
from ccl.run_files import METRICS, SETTINGS
from ccl.runs import run
from ccl.runs.display import PlainDisplay, RichDisplay
from ccl.settings import differences


def test_nothing_is_opened_before_there_is_something_to_show(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter]
) -> None:
    log = log_of(tmp_path, open_trackers("tensorboard"))
    log.step_begins(0, 8, 0, True)
    log.status("failed")
    assert writer.made == []


@pytest.mark.parametrize("moment", ["opening", "row", "end"])
def test_a_failing_tracker_is_left_behind_with_one_line(
    tmp_path: Path,
    open_trackers: Open,
    writer: type[fakes.SummaryWriter],
    mlflow: fakes.MLflow,
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    log = log_of(tmp_path, open_trackers("tensorboard", "mlflow"))

    def fail(*_: Any, **__: Any) -> None:
        writer.num_failures = getattr(writer, "num_failures", 0) + 1
        raise OSError(28, "No space left on device\nand more")

    monkeypatch.setattr(writer, {"opening": "__init__", "row": "add_scalar", "end": "close"}[moment], fail)
    learn(log)
    log.status("complete")
    line = "the tracker tensorboard failed (OSError: [Errno 28] No space left on device); the run continues without it"
    assert notes == [line]
    assert writer.num_failures == 1
    assert len((tmp_path / METRICS).read_text().splitlines()) == 9
    assert [without_times(one.points) for one in mlflow.runs.values()] == [WHOLE]  # the other one lost nothing


def test_a_failed_tracker_misses_nothing_once_the_run_goes_on(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter]
) -> None:
    log = log_of(tmp_path, open_trackers("tensorboard"))
    writer.disk_is_full = True
    learn(log)
    state, writer.disk_is_full = log.state(), False
    assert writer.shown == {}
    log_of(tmp_path, open_trackers("tensorboard")).resume(state)
    assert without_times(writer.shown) == WHOLE


def test_a_signal_is_not_taken_for_a_failure(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise StoppedError(15)

    monkeypatch.setattr(writer, "flush", stop)
    with pytest.raises(StoppedError):
        learn(log_of(tmp_path, open_trackers("tensorboard")))


def test_a_failure_with_brackets_can_be_shown() -> None:
    console = Console(force_terminal=True, width=200, color_system=None, record=True)
    RichDisplay(console).note("failed (OSError: [/tmp/x] [bold]not there)")
    assert "failed (OSError: [/tmp/x] [bold]not there)" in console.export_text()


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way to say that it can't be imported
    monkeypatch.setattr(sys.modules["ccl.runs.run"], "build_device", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(UserError) as caught:
        run(load_settings("demo", [f"trackers={name}"]), tmp_path / "run", PlainDisplay(Console(quiet=True)))
    assert f"pip install '.[{name}]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / SETTINGS).exists()


def test_a_folder_of_the_same_name_is_no_package(
    tmp_path: Path, open_trackers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    if getattr(__import__("wandb"), "__file__", None):
        pytest.skip("wandb is installed")
    with pytest.raises(UserError, match="pip install"):
        open_trackers("wandb")


def test_settings_name_trackers_and_may_change_them() -> None:
    plain = load_settings("demo")
    both = load_settings("demo", ["trackers=tensorboard, mlflow"])
    assert (plain.trackers, both.trackers) == ([], ["tensorboard", "mlflow"])
    assert differences(plain, both) == []
    with pytest.raises(
        UserError, match="trackers: Input should be 'tensorboard', 'wandb' or 'mlflow', got 'tensorbord'"
    ):
        load_settings("demo", ["trackers=tensorbord"])
    old = Path(__file__).parents[2] / "reliability" / "run_of_format_1" / SETTINGS
    assert "trackers" not in old.read_text()
    assert load_settings(str(old)).trackers == []


def test_a_real_run_shows_what_it_writes(tmp_path: Path, writer: type[fakes.SummaryWriter]) -> None:
    small = ["dataset=symbols,textures", "data.images_per_class=6", "data.classes=4", "epochs=2", "batch_size=12"]
    small += ["encoder.width=4", "encoder.dim=8", "moco_v2.queue_size=32", "memory.per_cluster=2", "data.workers=0"]
    settings = load_settings("demo", [*small, "trackers=tensorboard"])
    record = run(settings, tmp_path / "run", PlainDisplay(Console(quiet=True)))
    losses = [row["losses"]["contrast"] for row in record.rows if row["kind"] == "epoch"]
    assert writer.shown["loss/contrast"] == list(enumerate(losses, start=1))
    probes = [row["all_class_total"] for row in record.rows if row["kind"] == "probe"]
    assert writer.shown["accuracy/all_classes"] == list(zip((0, 2, 4), probes, strict=True))
    assert [made.is_closed for made in writer.made] == [True]
