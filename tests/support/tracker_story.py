"""A small run as its log tells it, whole and with breaks, and what a tracker must show of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tracker_fakes import Points

from ccl.loading import load_settings
from ccl.runs.run_folder import RunLog
from ccl.runs.trackers import Tracker

PLAIN = {"epochs": 2, "dataset": ["digits", "capitals"], "data": {"root": None, "classes": list(range(900))}}
Open = Callable[..., list[Tracker]]


def log_of(folder: Path, trackers: list[Tracker]) -> RunLog:
    return RunLog(folder, load_settings("demo"), {"steps": []}, trackers)


def learn_epoch(log: RunLog, step: int, epoch: int) -> None:
    """An epoch whose loss tells where it belongs: 10 * step + epoch, both from 1."""
    log.updated(step, epoch, {"contrast": 10.0 * (step + 1) + epoch + 1}, 8, 1.0)
    log.epoch_ends(step, epoch, 0.5)


def probe(log: RunLog, after: int) -> None:
    log.row(
        "probe",
        protocol="cached",
        after=after,
        per_step=[50.0 + after, 60.0 + after],
        all_class_total=40.0 + after,
        knn_total=None,
    )


def learn(log: RunLog, epochs: range = range(2), first_step: int = 0) -> None:
    """Two steps of two epochs each, with a probe before and after each."""
    if first_step == 0:
        log.begin()
        probe(log, 0)
    for step in range(first_step, 2):
        log.step_begins(step, 8, 8 * step, True)
        for epoch in epochs:
            learn_epoch(log, step, epoch)
        probe(log, step + 1)


WHOLE = {
    "loss/contrast": [(1, 11.0), (2, 12.0), (3, 21.0), (4, 22.0)],
    "learning_rate": [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5)],
    "accuracy/all_classes": [(0, 40.0), (2, 41.0), (4, 42.0)],
    "accuracy/step 1": [(0, 50.0), (2, 51.0), (4, 52.0)],
    "accuracy/step 2": [(0, 60.0), (2, 61.0), (4, 62.0)],
}


def without_times(points: Points) -> Points:
    return {name: series for name, series in points.items() if not name.startswith("seconds/")}


def wandb_points(rows: dict[int, dict[str, float]]) -> Points:
    found: Points = {}
    for _, row in sorted(rows.items()):
        for name in row.keys() - {"epoch"}:
            found.setdefault(name, []).append((int(row["epoch"]), row[name]))
    return without_times(found)


def broken_off_and_gone_on_with(folder: Path, open_trackers: Open, name: str) -> Iterator[RunLog]:
    """Four processes: one dies before its probe, one half-way through step 2, one has no tracker, one ends."""
    log = log_of(folder, open_trackers(name))
    log.begin()
    probe(log, 0)
    log.step_begins(0, 8, 0, True)
    learn_epoch(log, 0, 0)
    learn_epoch(log, 0, 1)
    before_probe = log.state()
    probe(log, 1)
    log.step_begins(1, 8, 8, True)
    yield log
    log = log_of(folder, open_trackers(name))
    log.resume(before_probe, {})
    probe(log, 1)
    log.step_begins(1, 8, 8, True)
    learn_epoch(log, 1, 0)
    half_way = log.state()
    learn_epoch(log, 1, 1)
    yield log
    log = log_of(folder, [])
    log.resume(half_way, {})
    learn_epoch(log, 1, 1)
    before_last_probe = log.state()
    yield log
    log = log_of(folder, open_trackers(name))
    log.resume(before_last_probe, {})
    probe(log, 2)
    log.status("complete")
    yield log
