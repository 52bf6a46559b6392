"""Trackers show every row once, at its epoch, also after breaks."""

import math
import sys
from pathlib import Path

import pytest
import tracker_fakes as fakes
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

from ccl.runs.trackers import scalars


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
    log.resume(state)
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
    log_of(tmp_path, open_trackers("mlflow")).resume(state)
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
