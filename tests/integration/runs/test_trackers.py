"""Trackers show every row once, at its epoch, also after breaks; what is missing is refused, what fails is left."""

import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tracker_fakes as fakes
from rich.console import Console
from tracker_story import (
    PLAIN,
    WHOLE,
    Open,
    broken_off_and_gone_on_with,
    learn,
    learn_epoch,
    log_of,
    probe,
    wandb_points,
    without_times,
)

from ccl import run
from ccl.errors import StoppedError, UserError
from ccl.loading import load_settings
from ccl.runs.display import PlainDisplay
from ccl.runs.folder_lock import SETTINGS
from ccl.runs.run_folder import METRICS
from ccl.runs.trackers import Tracker, make_trackers, scalars
from ccl.settings import differences


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def open_trackers(tmp_path: Path, notes: list[str]) -> Open:
    """Trackers of a folder as a new process would open them."""

    def make(*names: str, folder: Path = tmp_path, settings: dict[str, Any] = PLAIN) -> list[Tracker]:
        return make_trackers(names, folder, settings, "a run", notes.append)

    return make


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> type[fakes.SummaryWriter]:
    module, writer = fakes.tensorboard()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return writer


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> fakes.Wandb:
    server = fakes.Wandb()
    monkeypatch.setitem(sys.modules, "wandb", server.module())
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return server


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> fakes.MLflow:
    server = fakes.MLflow()
    for name, module in server.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "1")  # so that what is set by default is undone after the test
    return server


def test_names_of_scalars() -> None:
    epoch = {"step": 2, "epoch": 1, "learning_rate": 0.1, "losses": {"contrast": 1.0, "distillation": 2.0}}
    assert scalars("epoch", epoch | {"num_images": 9, "seconds": 3.5}) == {
        "loss/contrast": 1.0,
        "loss/distillation": 2.0,
        "learning_rate": 0.1,
        "seconds/epoch": 3.5,
    }
    result = {"after": 1, "per_step": [1.0, math.nan, 3.0], "all_class": [4.0], "all_class_total": 5.0, "knn_total": 6}
    assert scalars("probe", result | {"effective_rank": 7.0, "mean_cosine": 0.8, "protocol": "", "seconds": 9.0}) == {
        "accuracy/all_classes": 5.0,
        "accuracy/step 1": 1.0,
        "accuracy/step 3": 3.0,
        "knn": 6.0,
        "effective_rank": 7.0,
        "mean_cosine": 0.8,
        "seconds/probe": 9.0,
    }
    assert scalars("paper_probe", {"accuracy": 70.0}) == {"accuracy/paper_protocol": 70.0}
    assert scalars("step", {"step": 1, "num_new": 3, "num_old": 0}) == {}
    assert scalars("changed", {"epochs": [1, 2]}) == {}


def test_a_whole_run_in_each(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter], wandb: fakes.Wandb, mlflow: fakes.MLflow
) -> None:
    log = log_of(tmp_path, open_trackers("tensorboard", "wandb", "mlflow", "wandb"))
    learn(log)
    log.status("complete")
    assert without_times(writer.shown) == WHOLE
    assert [(made.log_dir, made.is_closed) for made in writer.made] == [(str(tmp_path / "tensorboard"), True)]
    assert '"epochs": 2' in writer.made[0].texts[0][1]
    assert [wandb_points(rows) for rows in wandb.rows.values()] == [WHOLE]
    assert wandb.inits[0]["config"] == PLAIN
    assert (wandb.inits[0]["project"], wandb.inits[0]["name"], wandb.inits[0]["dir"]) == ("ccl", "a run", str(tmp_path))
    assert (wandb.axes, wandb.exit_codes) == ([("*", "epoch")], [0])
    (one,) = mlflow.runs.values()
    assert without_times(one.points) == WHOLE
    assert (one.name, one.status, mlflow.experiments) == ("a run", "FINISHED", ["ccl"])
    assert (one.params["epochs"], one.params["data.root"]) == ("2", "None")


def test_epochs_are_counted_where_their_number_changes(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter]
) -> None:
    log = log_of(tmp_path, open_trackers("tensorboard"))
    log.begin()
    for epoch in range(5):
        learn_epoch(log, 0, epoch)
    state = log.state()
    log = log_of(tmp_path, open_trackers("tensorboard"))
    log.resume(state, {})
    log.row("changed", epochs=[5, 2])
    learn_epoch(log, 1, 0)
    probe(log, 5)  # of Upper Bound: after the one step it has, its row is that of the last
    assert writer.shown["loss/contrast"] == [(1, 11.0), (2, 12.0), (3, 13.0), (4, 14.0), (5, 15.0), (6, 21.0)]
    assert writer.shown["accuracy/all_classes"] == [(6, 45.0)]


def test_tensorboard_shows_each_row_once_after_breaks(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter]
) -> None:
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "tensorboard"):
        pass
    assert without_times(writer.shown) == WHOLE


def test_what_tensorboard_was_told_is_on_the_disk(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter]
) -> None:
    learn(log_of(tmp_path, open_trackers("tensorboard")))  # and killed, before anything was closed
    assert without_times(writer.shown) == WHOLE


def test_wandb_goes_on_with_its_run_and_is_told_nothing_twice(
    tmp_path: Path, open_trackers: Open, wandb: fakes.Wandb
) -> None:
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "wandb"):
        pass
    assert len({told["id"] for told in wandb.inits}) == 1
    assert {told["resume"] for told in wandb.inits} == {"allow"}
    assert [wandb_points(rows) for rows in wandb.rows.values()] == [WHOLE]
    assert (wandb.num_ignored, wandb.exit_codes) == (0, [0])
    log_of(tmp_path / "other", open_trackers("wandb", folder=tmp_path / "other")).row("paper_probe", accuracy=1.0)
    assert len({told["id"] for told in wandb.inits}) == 2


def test_wandb_offline_keeps_the_whole_run_in_its_last_folder(
    tmp_path: Path, open_trackers: Open, wandb: fakes.Wandb
) -> None:
    wandb.is_online = False
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "wandb"):
        pass
    assert len(wandb.rows) == 3
    assert wandb_points(list(wandb.rows.values())[-1]) == WHOLE


def test_mlflow_goes_on_with_its_run_and_is_told_nothing_twice(
    tmp_path: Path, open_trackers: Open, mlflow: fakes.MLflow
) -> None:
    states = []
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "mlflow"):
        states.append(mlflow.runs[(tmp_path / "mlflow_run_id").read_text()].status)
    (one,) = mlflow.runs.values()
    assert without_times(one.points) == WHOLE
    assert states == ["RUNNING", "RUNNING", "RUNNING", "FINISHED"]


def test_mlflow_s_parameters_stay_where_epochs_change(
    tmp_path: Path, open_trackers: Open, mlflow: fakes.MLflow, notes: list[str]
) -> None:
    log_of(tmp_path, open_trackers("mlflow")).row("paper_probe", accuracy=1.0)
    log_of(tmp_path, open_trackers("mlflow", settings=PLAIN | {"epochs": 9})).row("paper_probe", accuracy=2.0)
    (one,) = mlflow.runs.values()
    assert (one.params["epochs"], notes) == ("2", [])


def test_another_mlflow_server_is_told_everything(
    tmp_path: Path, open_trackers: Open, mlflow: fakes.MLflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path, open_trackers("mlflow"))
    learn(log)
    state, other = log.state(), fakes.MLflow()
    for name, module in other.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    log_of(tmp_path, open_trackers("mlflow")).resume(state, {})
    (one,) = other.runs.values()
    assert without_times(one.points) == WHOLE


@pytest.mark.parametrize(("state", "told"), [("stopped", "KILLED"), ("failed", "FAILED"), ("complete", "FINISHED")])
def test_the_end_is_told_as_it_was(
    tmp_path: Path, open_trackers: Open, wandb: fakes.Wandb, mlflow: fakes.MLflow, state: str, told: str
) -> None:
    log = log_of(tmp_path, open_trackers("mlflow", "wandb"))
    learn(log)
    log.status(state, reason="")
    assert [one.status for one in mlflow.runs.values()] == [told]
    assert wandb.exit_codes == [0 if state == "complete" else 1]


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
    log_of(tmp_path, open_trackers("tensorboard")).resume(state, {})
    assert without_times(writer.shown) == WHOLE


def test_a_signal_is_not_taken_for_a_failure(
    tmp_path: Path, open_trackers: Open, writer: type[fakes.SummaryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise StoppedError(15)

    monkeypatch.setattr(writer, "flush", stop)
    with pytest.raises(StoppedError):
        learn(log_of(tmp_path, open_trackers("tensorboard")))


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way to say that it can't be imported
    monkeypatch.setattr(sys.modules["ccl.runs.one_run"], "build_device", lambda *_: pytest.fail("work was begun"))
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


def assert_takes_all_of(real: Callable[..., Any], fake: Callable[..., Any]) -> None:
    missing = inspect.signature(fake).parameters.keys() - inspect.signature(real).parameters.keys() - {"self"}
    assert not missing, f"{real} does not take {missing}"


def test_with_the_real_tensorboard(tmp_path: Path, open_trackers: Open, notes: list[str]) -> None:
    pytest.importorskip("tensorboard.backend", reason="pip install '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    for method in ("__init__", "add_scalar", "add_text", "flush", "close"):
        assert_takes_all_of(getattr(SummaryWriter, method), getattr(fakes.SummaryWriter, method))
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "tensorboard"):
        pass
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert without_times(shown) == WHOLE
    assert notes == []


def test_with_the_real_mlflow(
    tmp_path: Path, open_trackers: Open, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow.entities", reason="pip install '.[mlflow]'")
    import mlflow

    for method in ("create_run", "update_run", "set_terminated", "get_metric_history", "log_batch"):
        assert_takes_all_of(getattr(mlflow.MlflowClient, method), getattr(fakes.MLflow, method))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for _ in broken_off_and_gone_on_with(tmp_path, open_trackers, "mlflow"):
        pass
    client, run_id = mlflow.MlflowClient(), (tmp_path / "mlflow_run_id").read_text()
    one = client.get_run(run_id)
    points = {name: [(m.step, m.value) for m in client.get_metric_history(run_id, name)] for name in one.data.metrics}
    assert {name: sorted(series) for name, series in without_times(points).items()} == WHOLE
    assert (one.info.status, one.info.run_name, one.data.params["epochs"]) == ("FINISHED", "a run", "2")
    assert len(client.search_runs([one.info.experiment_id])) == 1
    assert notes == []


def test_with_the_real_wandb_offline(
    tmp_path: Path, open_trackers: Open, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb.sdk", reason="pip install '.[wandb]'")
    import wandb

    assert_takes_all_of(wandb.init, fakes.Wandb.init)
    for method in ("log", "define_metric", "finish"):
        assert_takes_all_of(getattr(wandb.Run, method), getattr(fakes.WandbRun, method))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    opened, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: opened.append(init(**options)) or opened[-1])
    log = log_of(tmp_path, open_trackers("wandb"))
    learn(log)
    (run,) = opened
    last = {name: series[-1][1] for name, series in WHOLE.items()}
    assert {name: run.summary[name] for name in last} == last
    assert (run.id, run.step) == ((tmp_path / "wandb_run_id").read_text(), 9)
    assert run.config["epochs"] == 2
    log.status("complete")
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{run.id}"))) == 1
    assert notes == []
