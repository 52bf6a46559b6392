"""Optional trackers: TensorBoard, Weights & Biases and MLflow, shown the rows of metrics.jsonl as scalars over epochs.

When a run is resumed, its log sends all rows again from the first: a tracker that was killed, failed, or is new
misses none, and leaves out what it has already.
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
from typing import Any

from ccl.atomic_files import write_file
from ccl.errors import UserError, how_to_install, masked

# Of one package: shows the points of row `number`, written after so many epochs of the whole stream; ends its run.
Log = Callable[[int, int, Mapping[str, float]], None]
Close = Callable[[str], None]


def _tensorboard(folder: Path, settings: Mapping[str, Any], title: str) -> tuple[Log, Close]:
    """Event files in the run folder; `tensorboard --logdir` of any folder above shows them."""
    from torch.utils.tensorboard import SummaryWriter

    # All rows come again: whatever earlier event files say, from epoch 0 on, is hidden.
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
    writer.add_text("settings", f"```\n{json.dumps(settings, indent=2)}\n```", 0)

    def log(number: int, epoch: int, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()  # a killed process would lose what is queued, and a full disk is noticed here

    return log, lambda state: writer.close()


def _wandb(folder: Path, settings: Mapping[str, Any], title: str) -> tuple[Log, Close]:
    """A run of W&B. Its step is the row's number, so that a row sent twice is recognised; charts are over `epoch`."""
    import wandb

    kept = folder / "wandb_run_id"
    if not kept.exists():
        write_file(kept, uuid.uuid4().hex)
    run = wandb.init(
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
    run.define_metric("*", step_metric="epoch")

    def log(number: int, epoch: int, points: Mapping[str, float]) -> None:
        if number >= run.starting_step:  # the server has those before
            run.log({"epoch": epoch, **points}, step=number, commit=True)

    return log, lambda state: run.finish(exit_code=0 if state == "complete" else 1)


def _mlflow(folder: Path, settings: Mapping[str, Any], title: str) -> tuple[Log, Close]:
    """A run of MLflow, by the client only; its tag `row` is the number of the last row that it has."""
    # Training waits for each row: by default mlflow tries a dead server for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow
    from mlflow.entities import Metric, Param, RunTag

    client, last, kept = mlflow.MlflowClient(), -1, folder / "mlflow_run_id"
    try:
        run_id = kept.read_text(encoding="utf-8").strip()
        client.update_run(run_id, status="RUNNING")
        last = int(client.get_run(run_id).data.tags.get("row", -1))
    except (OSError, mlflow.MlflowException):  # new here, deleted there, or another server: it gets all rows
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "ccl"))
        run_id = client.create_run(experiment.experiment_id, run_name=title).info.run_id
        write_file(kept, run_id)
        # Once only, as a parameter can't change; of a long list its beginning, as old servers take 500 letters.
        flat = {name: value if isinstance(value, dict) else {"": value} for name, value in settings.items()}
        named = {f"{name}.{key}".strip("."): value for name, part in flat.items() for key, value in part.items()}
        params = [Param(name, str(value)[:500]) for name, value in named.items()]
        client.log_batch(run_id, params=params, synchronous=True)

    def log(number: int, epoch: int, points: Mapping[str, float]) -> None:
        if number > last:
            now = int(1000 * time.time())
            metrics = [Metric(name, value, now, epoch) for name, value in points.items()]
            client.log_batch(run_id, metrics, tags=[RunTag("row", str(number))], synchronous=True)

    statuses = {"complete": "FINISHED", "stopped": "KILLED"}
    return log, lambda state: client.set_terminated(run_id, statuses.get(state, "FAILED"))


# How each is opened, and what it needs: a folder ./wandb can be imported too, so the module alone proves nothing.
_TRACKERS = {
    "tensorboard": (_tensorboard, "torch.utils.tensorboard", "SummaryWriter"),
    "wandb": (_wandb, "wandb", "Settings"),
    "mlflow": (_mlflow, "mlflow", "MlflowClient"),
}


class Tracker:
    """Shows one package every row of metrics.jsonl, in order and from the first; never raises an Exception.

    It opens it when there is something to show, and leaves it alone once it has failed.
    """

    def __init__(self, name: str, opened: Callable[[], tuple[Log, Close]], note: Callable[[str], None]) -> None:
        self._name, self._open, self._note = name, opened, note
        self._opened: tuple[Log, Close] | None = None
        self._has_failed = False
        self._num_rows = self._num_epochs = 0

    def row(self, kind: str, values: Mapping[str, Any]) -> None:
        """Pass on the row's scalars at the number of epochs so far, which stays true where `epochs` has changed."""
        number = self._num_rows
        self._num_rows += 1
        self._num_epochs += kind == "epoch"
        if points := scalars(kind, values):
            self._try(lambda log, _: log(number, self._num_epochs, points))

    def close(self, state: str = "complete") -> None:
        """The run is over: complete, stopped or failed."""
        if self._opened is not None:
            self._try(lambda _, close: close(state))

    def _try(self, action: Callable[[Log, Close], None]) -> None:
        if self._has_failed:
            return
        try:
            self._opened = self._opened or self._open()
            action(*self._opened)
        except Exception as error:  # no network, full disk: a run is worth more than its curves
            self._has_failed = True
            self._note(f"the tracker {self._name} failed ({_line(error)}); the run continues without it")


def make_trackers(
    names: Iterable[str], folder: Path, settings: Mapping[str, Any], title: str, note: Callable[[str], None]
) -> list[Tracker]:
    """A tracker for each name, which opens at its first row; raises UserError where a package is missing."""
    made = []
    for name in dict.fromkeys(names):
        opened, module, symbol = _TRACKERS[name]
        try:
            getattr(importlib.import_module(module), symbol)
        except Exception as error:  # a broken installation raises anything
            raise UserError(
                f"the tracker {name} can't be imported ({_line(error)}); {how_to_install(name)}, or leave it out"
            ) from error
        shown = json.loads(masked(json.dumps(settings)))  # they may be seen by others
        made.append(Tracker(name, partial(opened, folder, shown, title), note))
    return made


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


def _line(error: Exception) -> str:
    """An exception in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
