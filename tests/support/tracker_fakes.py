"""Stand-ins for torch's SummaryWriter, wandb and mlflow: their signatures and refusals, and a memory of what came."""

import re
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

Points = dict[str, list[tuple[int, float]]]


class SummaryWriter:
    """As torch's: a queue that only `flush` and `close` bring to the disk, and purging by step."""

    shown: ClassVar[Points] = {}  # what TensorBoard would show of a folder, over all writers
    made: ClassVar[list["SummaryWriter"]] = []
    disk_is_full = False

    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        self.log_dir, self._queue, self.is_closed, self.texts = log_dir, [], False, []
        type(self).made.append(self)
        if purge_step is not None:
            for series in type(self).shown.values():
                series[:] = [point for point in series if point[0] < purge_step]

    def add_scalar(
        self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False
    ) -> None:
        assert not self.is_closed
        self._queue.append((tag, global_step, float(scalar_value)))

    def add_text(self, tag, text_string, global_step=None, walltime=None) -> None:
        self.texts.append((tag, text_string))

    def flush(self) -> None:
        if type(self).disk_is_full:
            raise OSError(28, "No space left on device")
        for tag, step, value in self._queue:
            type(self).shown.setdefault(tag, []).append((step, value))
        self._queue = []

    def close(self) -> None:
        self.flush()
        self.is_closed = True


def tensorboard() -> tuple[ModuleType, type[SummaryWriter]]:
    """A fresh module and its writer class."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = type("SummaryWriter", (SummaryWriter,), {"shown": {}, "made": []})
    return module, module.SummaryWriter


@dataclass
class Wandb:
    """A server: for each run id, its rows by wandb's own step."""

    is_online: bool = True
    rows: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    inits: list[dict[str, Any]] = field(default_factory=list)
    axes: list[tuple[str, str]] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    num_ignored: int = 0  # the real one warns of each

    def module(self) -> ModuleType:
        module = ModuleType("wandb")
        module.Settings, module.init = _wandb_settings, self.init
        return module

    def init(
        self,
        entity=None,
        project=None,
        dir=None,  # noqa: A002
        id=None,  # noqa: A002
        name=None,
        config=None,
        allow_val_change=None,
        mode=None,
        reinit=None,
        resume=None,
        settings=None,
    ) -> "WandbRun":
        assert not set(id) & set("/\\#?%:")
        assert reinit in (None, "default", "return_previous", "finish_previous", "create_new")
        assert resume in (None, "allow", "never", "must", "auto")
        self.inits.append({"id": id, "name": name, "project": project, "config": config, "resume": resume, "dir": dir})
        if not self.is_online:
            return WandbRun(self, self.rows.setdefault(f"{id} offline {len(self.inits)}", {}), 0)
        known = self.rows.setdefault(id, {})
        return WandbRun(self, known, max(known, default=-1) + 1)


def _wandb_settings(*, console="auto", init_timeout=90.0, finish_timeout=0.0, finish_timeout_raises=False):
    return SimpleNamespace(console=console, finish_timeout=finish_timeout)


class WandbRun:
    def __init__(self, server: Wandb, rows: dict[int, dict[str, float]], starting_step: int) -> None:
        self._server, self._rows, self._at, self.starting_step = server, rows, starting_step, starting_step

    def define_metric(self, name, step_metric=None, step_sync=None, hidden=None, summary=None, overwrite=None) -> None:
        self._server.axes.append((name, step_metric))

    def log(self, data, step=None, commit=None) -> None:
        if step < self._at:
            self._server.num_ignored += 1
            return
        self._rows.setdefault(step, {}).update(data)
        self._at = step

    def finish(self, exit_code=None) -> None:
        self._server.exit_codes.append(exit_code)


class MlflowException(Exception):  # noqa: N818
    pass


@dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Param:
    key: str
    value: str


@dataclass
class MLflow:
    """A server: runs with their parameters, points and states."""

    runs: dict[str, SimpleNamespace] = field(default_factory=dict)
    experiments: list[str] = field(default_factory=list)

    def modules(self) -> dict[str, ModuleType]:
        module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        module.MlflowClient, module.MlflowException = lambda tracking_uri=None, registry_uri=None: self, MlflowException
        module.set_experiment = self.set_experiment
        entities.Metric, entities.Param, entities.RunTag = Metric, Param, Param
        return {"mlflow": module, "mlflow.entities": entities}

    def set_experiment(self, experiment_name=None, experiment_id=None) -> SimpleNamespace:
        self.experiments.append(experiment_name)
        return SimpleNamespace(experiment_id="1")

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None) -> SimpleNamespace:
        run_id = f"{len(self.runs):032x}"
        self.runs[run_id] = SimpleNamespace(name=run_name, status="RUNNING", params={}, points={}, tags={})
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def update_run(self, run_id, status=None, name=None) -> None:
        self._run(run_id).status = status

    def set_terminated(self, run_id, status=None, end_time=None) -> None:
        assert status in ("FINISHED", "KILLED", "FAILED")
        self._run(run_id).status = status

    def get_run(self, run_id) -> SimpleNamespace:
        return SimpleNamespace(data=self._run(run_id))

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None) -> None:
        run = self._run(run_id)
        if len(params) > 100 or len(metrics) > 1000:
            raise MlflowException("a batch is too large")
        for entity in (*metrics, *params):
            if not re.fullmatch(r"[/\w.\- :]+", entity.key):
                raise MlflowException(f"bad name {entity.key!r}")
        for param in params:
            if len(param.value) > 500 or run.params.setdefault(param.key, param.value) != param.value:
                raise MlflowException(f"param {param.key} can't be {param.value}")
        run.tags.update((tag.key, tag.value) for tag in tags)
        for metric in metrics:
            run.points.setdefault(metric.key, []).append((metric.step, metric.value))

    def _run(self, run_id: str) -> SimpleNamespace:
        if run_id not in self.runs:
            raise MlflowException(f"no run {run_id}")
        return self.runs[run_id]
