"""Optional trackers: TensorBoard, Weights & Biases and MLflow, shown the rows of metrics.jsonl as scalars over epochs.

When a run is resumed, its log sends all rows again from the first: a tracker that was killed, failed, or is new
misses none, and each adapter leaves out what it has already.
"""

import importlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ccl.atomic_files import write_file
from ccl.errors import UserError, how_to_install

# What each tracker needs: a folder ./wandb can be imported too, so the module alone proves nothing.
_NEEDS = {
    "tensorboard": ("torch.utils.tensorboard", "SummaryWriter"),
    "wandb": ("wandb", "Settings"),
    "mlflow": ("mlflow", "MlflowClient"),
}


class _Adapter(Protocol):
    """One package; row `number` of the run was written after `epoch` epochs of the whole stream."""

    def log(self, number: int, epoch: int, points: Mapping[str, float]) -> None: ...

    def close(self, state: str) -> None: ...


def make_trackers(
    names: Iterable[str], folder: Path, settings: Mapping[str, Any], title: str, note: Callable[[str], None]
) -> "list[Tracker]":
    """A tracker for each name, which opens at its first row; raises UserError where a package is missing."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        _refuse_missing(name)
    return [Tracker(name, partial(_ADAPTERS[name], folder, settings, title), note) for name in wanted]


def _refuse_missing(name: str) -> None:
    module, symbol = _NEEDS[name]
    try:
        getattr(importlib.import_module(module), symbol)
    except Exception as error:  # a broken installation raises anything
        raise UserError(
            f"the tracker {name} can't be imported ({_line(error)}); {how_to_install(name)}, or leave it out"
        ) from error


class Tracker:
    """Shows one package every row of metrics.jsonl, in order and from the first; never raises an Exception.

    It opens its adapter when there is something to show, and leaves it alone once it has failed.
    """

    def __init__(self, name: str, open_adapter: Callable[[], _Adapter], note: Callable[[str], None]) -> None:
        self._name, self._open, self._note = name, open_adapter, note
        self._adapter: _Adapter | None = None
        self._has_failed = False
        self._num_rows = self._num_epochs = 0

    def row(self, kind: str, values: Mapping[str, Any]) -> None:
        """Pass on the row's scalars at the number of epochs so far, which stays true where `epochs` has changed."""
        number = self._num_rows
        self._num_rows += 1
        self._num_epochs += kind == "epoch"
        points = scalars(kind, values)
        if points and not self._has_failed:
            self._try(lambda: self._opened().log(number, self._num_epochs, points))

    def close(self, state: str = "complete") -> None:
        """The run is over: complete, stopped or failed."""
        adapter = self._adapter
        if adapter is not None and not self._has_failed:
            self._try(lambda: adapter.close(state))

    def _opened(self) -> _Adapter:
        self._adapter = self._adapter or self._open()
        return self._adapter

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # no network, full disk: a run is worth more than its curves
            self._has_failed = True
            self._note(f"the tracker {self._name} failed ({_line(error)}); the run continues without it")


def scalars(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by the names that trackers show; {} for a row without any."""
    found: dict[str, float | None] = {}
    if kind == "epoch":
        found = {f"loss/{name}": value for name, value in values["losses"].items()}
        found |= {"learning_rate": values.get("learning_rate"), "seconds/epoch": values.get("seconds")}
    elif kind == "probe":
        found = {"accuracy/all_classes": values.get("all_class_total"), "knn": values.get("knn_total")}
        found |= {f"accuracy/step {step}": value for step, value in enumerate(values["per_step"], start=1)}
        found |= {name: values.get(name) for name in ("effective_rank", "mean_cosine")}
        found["seconds/probe"] = values.get("seconds")
    elif kind == "paper_probe":
        found = {"accuracy/paper_protocol": values["accuracy"]}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


class _TensorBoard:
    """Event files in the run folder; `tensorboard --logdir` of any folder above shows them."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], title: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # All rows come again: whatever earlier event files say, from epoch 0 on, is hidden.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("settings", f"```\n{json.dumps(settings, indent=2)}\n```", 0)

    def log(self, number: int, epoch: int, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()  # a killed process would lose what is queued, and a full disk is noticed here

    def close(self, state: str) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run of W&B. Its step is the row's number, so that a row sent twice is recognised; charts are over `epoch`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], title: str) -> None:
        import wandb

        kept = folder / "wandb_run_id"
        if not kept.exists():
            write_file(kept, uuid.uuid4().hex)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ccl"),
            dir=str(folder),
            id=kept.read_text(encoding="utf-8").strip(),
            name=title,
            config=dict(settings),
            allow_val_change=True,  # of `epochs`, where a run is resumed
            resume="allow",
            reinit="create_new",  # a run that the caller has open is not ours to write to
            # Without network, finish would wait for ever; a signal must be obeyed within 20 s.
            settings=wandb.Settings(console="off", finish_timeout=15.0, finish_timeout_raises=True),
        )
        self._run.define_metric("*", step_metric="epoch")

    def log(self, number: int, epoch: int, points: Mapping[str, float]) -> None:
        if number >= self._run.starting_step:  # the server has those before
            self._run.log({"epoch": epoch, **points}, step=number, commit=True)

    def close(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "complete" else 1)


class _MLflow:
    """A run of MLflow, by the client only: what the caller does with mlflow's active run is left alone."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], title: str) -> None:
        # Training waits for each row: by default mlflow tries a dead server for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient()
        self._known: dict[str, set[int]] = {}  # the epochs that a metric has already
        kept = folder / "mlflow_run_id"
        try:
            self._run_id = kept.read_text(encoding="utf-8").strip()
            self._client.update_run(self._run_id, status="RUNNING")
        except (OSError, mlflow.MlflowException):  # new here, deleted there, or another server: it gets all rows
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "ccl"))
            self._run_id = self._client.create_run(experiment.experiment_id, run_name=title).info.run_id
            write_file(kept, self._run_id)
            # Once only, as a parameter can't change; of a long list its beginning, as old servers take 500 letters.
            params = [Param(name, str(value)[:500]) for name, value in _flat(settings).items()]
            self._client.log_batch(self._run_id, params=params, synchronous=True)

    def log(self, number: int, epoch: int, points: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [Metric(name, value, now, epoch) for name, value in points.items() if epoch not in self._epochs_of(name)]
        if new:
            self._client.log_batch(self._run_id, metrics=new, synchronous=True)

    def _epochs_of(self, name: str) -> set[int]:
        if name not in self._known:
            self._known[name] = {metric.step for metric in self._client.get_metric_history(self._run_id, name)}
        return self._known[name]

    def close(self, state: str) -> None:
        status = {"complete": "FINISHED", "stopped": "KILLED"}.get(state, "FAILED")
        self._client.set_terminated(self._run_id, status)


_ADAPTERS: dict[str, Callable[[Path, Mapping[str, Any], str], _Adapter]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `section.name`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _line(error: Exception) -> str:
    """An exception in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
