"""The runs behind the docs' tables as small text, docs/results/GRID.jsonl, so that later runs join earlier ones.

A run folder holds weights and checkpoints and stays where it was made. What tables need of it is a line here: settings,
protocol, what it stored, its probes, and the time of each step. The first line holds what the first run has; the others
say where they differ from it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ccl.atomic_files import write_file
from ccl.evaluation import AccuracyMatrix, ProbeResult
from ccl.loading import validated
from ccl.report.arms import flat
from ccl.runs.run_folder import RunRecord
from ccl.section import merged

_STATUS = ("state", "peak_memory_bytes", "stored_bytes")
_PROBE = ("kind", "after", "per_step", "all_class", "all_class_total", "knn_total", "seconds")
_OF_A_MACHINE = ("root", "workers", "download")  # of settings.data
_DIGITS = 4


def write(path: Path, records: Sequence[RunRecord]) -> None:
    """Replace a grid's file by these runs, which must have been probed."""
    every = [_described(record) for record in records]
    first = every[0] | {"rows": []}
    lines = [first, *(_beyond(first, one) for one in every)]
    lost = [number for number, one in enumerate(every) if merged(first, lines[1 + number]) != one]
    assert not lost, f"{path}: runs {lost} lack settings or facts that the first one has"
    write_file(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read(path: Path) -> list[RunRecord]:
    """The runs of a grid's file; [] where there is none."""
    if not path.is_file():
        return []
    first, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [_record(path, merged(first, line)) for line in lines]


def joined(kept: Sequence[RunRecord], found: Sequence[RunRecord]) -> list[RunRecord]:
    """Both; of the same run the one that was found."""
    runs = {repr(flat(record.settings)): record for record in (*kept, *found)}
    return list(runs.values())


def _described(record: RunRecord) -> dict[str, Any]:
    settings = record.settings.model_dump(mode="json")
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in _OF_A_MACHINE}
    return {
        "settings": settings,
        "protocol": record.protocol,
        "status": {key: record.status[key] for key in _STATUS if key in record.status},
        "probe": _probe_protocol(record),
        "rows": [*_times_of_steps(record), *_probes(record)],
    }


def _probe_protocol(record: RunRecord) -> str:
    (protocol,) = {str(row["protocol"]) for row in record.rows if row["kind"] == "probe"}
    return protocol


def _times_of_steps(record: RunRecord) -> list[dict[str, Any]]:
    """One row for the epochs of each step."""
    steps: dict[int, dict[str, float]] = {}
    for row in record.rows:
        if row["kind"] == "epoch":
            sums = steps.setdefault(int(row["step"]), {"seconds": 0.0, "cpu_seconds": 0.0})
            for clock in sums:
                sums[clock] += float(row[clock])
    return [{"kind": "epoch", "step": step} | _rounded(sums) for step, sums in steps.items()]


def _probes(record: RunRecord) -> list[dict[str, Any]]:
    rows = [row for row in record.rows if row["kind"] == "probe"]
    return [_rounded({key: row[key] for key in _PROBE if key in row}) for row in rows]


def _record(path: Path, values: Mapping[str, Any]) -> RunRecord:
    rows = [row | ({"protocol": values["probe"]} if row["kind"] == "probe" else {}) for row in values["rows"]]
    protocol = dict(values["protocol"])
    accuracy = AccuracyMatrix(len(protocol["steps"]))
    for row in rows:
        if row["kind"] == "probe":
            result = ProbeResult(row["per_step"], row["all_class"], row["all_class_total"], row["protocol"])
            accuracy.record(row["after"] - 1 if row["after"] else None, result)
    settings = validated(values["settings"], written_in=path)
    return RunRecord(path, settings, protocol, dict(values["status"]), rows, accuracy)


def _beyond(first: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What must be laid over `first` to get `own`, which has all its keys."""
    found = {}
    for key, value in own.items():
        below = first.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _beyond(below, value)
        if value != below and value != {}:
            found[key] = value
    return found


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(one) for one in value]
        return round(value, _DIGITS) if isinstance(value, float) else value

    return {key: short(value) for key, value in values.items()}
