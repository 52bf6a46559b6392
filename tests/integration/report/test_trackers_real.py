"""The trackers with their real packages, where these are installed: pip install '.[tensorboard,wandb,mlflow]'."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tracker_fakes as fakes
from tracker_story import WHOLE, Open, broken_off_and_gone_on_with, learn, log_of, without_times


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
    trackers = open_trackers("wandb")
    log = log_of(tmp_path, trackers)
    learn(log)
    run = trackers[0]._adapter._run  # type: ignore[attr-defined]
    last = {name: series[-1][1] for name, series in WHOLE.items()}
    assert {name: run.summary[name] for name in last} == last
    assert (run.id, run.step) == ((tmp_path / "wandb_run_id").read_text(), 9)
    assert run.config["epochs"] == 2
    log.status("complete")
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{run.id}"))) == 1
    assert notes == []
