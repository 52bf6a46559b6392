"""A run folder's small files: settings, protocol, status, metric rows and accuracies, written and read in one place."""

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl import ranks
from ccl.atomic_files import append, sync, write_file
from ccl.errors import UserError, counted
from ccl.evaluation import AccuracyMatrix
from ccl.loading import dump_settings, read_settings
from ccl.runs.file_types import Protocol, typed, typed_row
from ccl.runs.folder_lock import SETTINGS, STATUS, advice, as_shown, read_status
from ccl.sealed_json import seal
from ccl.settings import Settings, differences
from ccl.training import Observer, Remembered

if TYPE_CHECKING:
    from ccl.runs.trackers import Tracker

PROTOCOL = "protocol.json"
METRICS = "metrics.jsonl"
ACCURACY = "accuracy.csv"
CHECKPOINTS = "checkpoints"
ENCODER = "encoder.safetensors"
MEMORY = "memory"
EMBEDDINGS = "embeddings.npz"
BAD_IMAGES = "bad_images.csv"
SMALL = (SETTINGS, PROTOCOL, METRICS, ACCURACY)  # every checkpoint has them too
TIMES = ("seconds", "cpu_seconds")  # what two runs of the same bits may differ in, row by row


class RunLog(Observer):
    """Writes a run's rows and, as an observer of the loop, sums up each epoch; on ranks but the first it is silent."""

    def __init__(
        self, folder: Path, settings: Settings, protocol: Mapping[str, Any], trackers: "Sequence[Tracker]" = ()
    ) -> None:
        self.folder, self._trackers = folder, trackers
        self._writes = ranks.is_first()
        self.started = time.time()
        self._epoch = _Sums()
        self._clocks = _clocks()
        self._hashes: dict[str, str] = {}  # of the files that stay as they are while it runs
        if self._writes:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SETTINGS).exists():
                self.status("running")  # else a kill between the next lines would leave the hashes of other files
            write_file(folder / SETTINGS, dump_settings(settings))
            write_file(folder / PROTOCOL, json.dumps(protocol, indent=2, ensure_ascii=False))
            self._hashes = {name: sha256_of(folder / name) for name in (SETTINGS, PROTOCOL)}
        self.status("running")

    def state(self) -> dict[str, Any]:
        """The log's state for a checkpoint: the length of the rows, and the sums of the epoch under way."""
        metrics = self.folder / METRICS
        self._tick()
        return {"bytes": metrics.stat().st_size if metrics.exists() else 0, "epoch": asdict(self._epoch)}

    def small_files(self) -> dict[str, bytes]:
        """The small files for a checkpoint, which is then whole by itself."""
        found = {name: _content(self.folder / name) for name in SMALL}
        return {name: content for name, content in found.items() if content or name == METRICS}

    def resume(self, state: Mapping[str, Any], files: Mapping[str, bytes] = {}) -> str:
        """Return to the rows and sums of a checkpoint, and pass the rows to trackers; what is lost of them, if any."""
        if not self._writes:
            return ""
        rows, lost = files.get(METRICS), ""
        if rows is None:  # checkpoints of before have the number of their bytes alone
            content = _content(self.folder / METRICS)[: int(state["bytes"])]
            found, num_bytes, _ = _whole_rows(content, lambda row: row)
            rows = content[:num_bytes]
            if num_bytes < state["bytes"]:
                there = f"{num_bytes} of the {state['bytes']} bytes that the checkpoint counts"
                lost = f"{METRICS} has {there}: its rows after the first {len(found)} are lost"
        write_file(self.folder / METRICS, rows)
        if ACCURACY in files:
            write_file(self.folder / ACCURACY, files[ACCURACY])
        if self._trackers:
            for row in read_rows(self.folder):
                self._track(**row)
        self._epoch = _Sums(**state["epoch"])
        self._clocks = _clocks()
        return lost

    def begin(self) -> None:
        """Start with no rows, where there is no checkpoint."""
        if self._writes:
            (self.folder / METRICS).unlink(missing_ok=True)

    def status(self, state: str, **about: Any) -> None:
        """Replace status.json: what the run is doing now, who does it, and the SHA-256 of what it leaves."""
        if not self._writes:
            return
        files = self._hashes
        if state != "running":
            if (self.folder / METRICS).exists():
                sync(self.folder / METRICS)
            files = {name: sha256_of(self.folder / name) for name in left_files(self.folder)} | files
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        times = {"started": self.started, "updated": time.time()}
        write_file(self.folder / STATUS, seal({"state": state, **about, **holder, **times, "files": files}))
        if state != "running":
            for tracker in self._trackers:
                tracker.close(state)

    def row(self, kind: str, **values: Any) -> None:
        """Append one line to metrics.jsonl, and pass it to the trackers."""
        if not self._writes:
            return
        append(self.folder / METRICS, json.dumps({"kind": kind, **values}).encode() + b"\n")
        self._track(kind, **values)

    def _track(self, kind: str, **values: Any) -> None:
        for tracker in self._trackers:
            tracker.row(kind, values)

    def accuracy(self, matrix: AccuracyMatrix) -> None:
        """Replace accuracy.csv."""
        if self._writes:
            matrix.to_csv(self.folder / ACCURACY)

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        self._clocks = _clocks()
        if is_new:
            self._epoch = _Sums()
            self.row("step", step=step + 1, num_new=num_new, num_old=num_old)

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        self._epoch.add(losses, num_images)

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        self._tick()
        sums = self._epoch
        about = {"step": step + 1, "epoch": epoch + 1, "learning_rate": learning_rate, "losses": sums.means()}
        times = {"seconds": round(sums.seconds, 3), "cpu_seconds": round(sums.cpu_seconds, 3)}
        self.row("epoch", **about, num_images=sums.num_images, **times)
        self.status("running", step=step + 1, epoch=epoch + 1)
        self._epoch = _Sums()

    def remembered(self, step: int, what: Remembered) -> None:
        self.row("memory", step=step + 1, **asdict(what))

    def _tick(self) -> None:
        before, self._clocks = self._clocks, _clocks()
        self._epoch.seconds += self._clocks[0] - before[0]
        self._epoch.cpu_seconds += self._clocks[1] - before[1]


def _clocks() -> tuple[float, float]:
    """Wall-clock time, and CPU time of this process on all cores."""
    return time.perf_counter(), time.process_time()


@dataclass
class _Sums:
    """The losses of the epoch under way, weighted by images."""

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # a term may be silent in a batch without old images
    num_images: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # what other processes on the machine hardly change

    def add(self, losses: Mapping[str, float], num_images: int) -> None:
        self.num_images += num_images
        for name, value in losses.items():
            self.totals[name] = self.totals.get(name, 0.0) + value * num_images
            self.counts[name] = self.counts.get(name, 0) + num_images

    def means(self) -> dict[str, float]:
        return {name: total / self.counts[name] for name, total in self.totals.items()}


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder, read back.

    >>> record = ccl.read_run("runs/first")
    >>> record.settings.strategy, record.status["state"]
    ('ccl', 'complete')
    """

    folder: Path
    settings: Settings
    protocol: dict[str, Any]
    status: dict[str, Any]
    rows: list[dict[str, Any]]  # of metrics.jsonl
    accuracy: AccuracyMatrix | None  # None before the first probe

    @property
    def step_names(self) -> list[str]:
        return [str(step["name"]) for step in self.protocol["steps"]]

    @property
    def has_paper_probe(self) -> bool:
        """Whether its headline is a number of its own, by the paper's protocol, beside a matrix by the cached one."""
        return self.settings.probe.adds_paper_accuracy

    @property
    def all_classes(self) -> float:
        """The headline: one probe over all classes after the last step, by the paper's protocol where a run has it."""
        if self.has_paper_probe:
            return next(
                (float(row.get("accuracy", math.nan)) for row in self.rows if row["kind"] == "paper_probe"), math.nan
            )
        return math.nan if self.accuracy is None else float(self.accuracy.all_class_total[-1])

    @property
    def num_test_images(self) -> list[int] | None:
        """The number of test images of each step; None for runs that do not record it."""
        found = [step.get("num_test_images") for step in self.protocol["steps"]]
        return None if None in found else [int(number) for number in found]


def read_run(folder: str | Path) -> RunRecord:
    """Read a run folder; raises UserError in one line where it is not one.

    >>> record = ccl.read_run("runs/first")
    >>> [row["kind"] for row in record.rows]
    ['step', 'epoch', 'memory', 'step', 'epoch', 'memory']
    """
    folder = Path(folder)
    if not (folder / SETTINGS).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {SETTINGS}")
    if not (status := read_status(folder)):
        raise UserError(f"{folder} has no {STATUS}; {advice(folder)}")
    refuse_changed(folder, status)
    try:
        path = folder / PROTOCOL
        protocol = typed(Protocol, json.loads(path.read_bytes()))
        path = folder / ACCURACY
        accuracy = AccuracyMatrix.from_csv(path) if path.exists() else None
        if accuracy is not None and accuracy.num_steps != len(protocol["steps"]):
            raise ValueError(f"it is of {counted(accuracy.num_steps, 'step')}, the run has {len(protocol['steps'])}")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"can't read {path}: {getattr(error, 'strerror', None) or error}; {advice(folder)}") from None
    settings, rows = read_settings(folder / SETTINGS), read_rows(folder)
    return RunRecord(folder, settings, protocol, as_shown(status, folder), rows, accuracy)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, [] where there are none yet; raises UserError for one that is not whole."""
    rows, _, why = _whole_rows(_content(folder / METRICS))
    if why:
        raise UserError(f"{folder / METRICS}, line {len(rows) + 1}: {why}; {advice(folder)}")
    return rows


def _whole_rows(content: bytes, typed: Callable[[Any], Any] = typed_row) -> tuple[list[dict[str, Any]], int, str]:
    """The rows before the first that is not whole, their bytes, and what is wrong with that one."""
    rows, num_bytes = list[dict[str, Any]](), 0
    for line in content.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("its end is missing")
            rows.append(typed(json.loads(line)))
        except (ValueError, RecursionError) as error:
            return rows, num_bytes, f"not a whole row ({error})"
        num_bytes += len(line)
    return rows, num_bytes, ""


def left_files(folder: Path) -> list[str]:
    """What a run leaves beside its status and its checkpoints, as far as it is there."""
    names = [name for name in (*SMALL, BAD_IMAGES, ENCODER, EMBEDDINGS) if (folder / name).is_file()]
    return names + sorted(f"{MEMORY}/{path.name}" for path in (folder / MEMORY).glob("*"))


def refuse_changed(folder: Path, status: Mapping[str, Any]) -> None:
    """Refuse a run of which a small file is not as the run left it; those of before recorded no hashes."""
    files = status.get("files", {})
    is_ended = "files" in status and status["state"] != "running"
    for name in SMALL if is_ended else files.keys() & set(SMALL):
        path = folder / name
        if path.exists() != (name in files):
            raise UserError(f"{path} is {'missing' if name in files else 'not of this run'}; {advice(folder)}")
        if name in files and sha256_of(path) != files[name]:
            raise UserError(f"{path} is not as the run left it; {advice(folder)}")


def sha256_of(path: Path) -> str:
    """A file's SHA-256; raises UserError where it can't be read."""
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    """A file's bytes, none where it is not there; raises UserError where it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from None


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among these and below them, each once, sorted; refuses a folder without any."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        runs = {path.parent for path in folder.rglob(SETTINGS) if path.parents[1].name != CHECKPOINTS}
        below = sorted(run for run in runs if (run / STATUS).is_file() or (run / METRICS).is_file())
        if not below:
            raise UserError(f"{folder} is not a run folder and holds none: no {SETTINGS} with a {STATUS} in it")
        found |= dict.fromkeys(path.resolve() for path in below)
    return list(found)


def is_finished(settings: Settings, folder: Path) -> bool:
    """Whether this very run is complete; refuses a folder whose run had other settings, with the differences.

    One whose files are not as the run left them is refused too: neither believed nor learned anew.
    """
    status = read_status(folder)
    if not (folder / SETTINGS).is_file():
        if status:
            raise UserError(f"{folder} has lost its {SETTINGS}; {advice(folder)}")
        return False
    if not status and (folder / METRICS).exists():
        raise UserError(f"{folder} has lost its {STATUS}; {advice(folder)}")
    is_complete = status.get("state") == "complete"
    if is_complete:
        refuse_changed(folder, status)
    changed = differences(read_settings(folder / SETTINGS), settings)
    if changed:
        raise UserError(f"--out {folder} holds a run with other settings ({'; '.join(changed)}); name another folder")
    return is_complete
