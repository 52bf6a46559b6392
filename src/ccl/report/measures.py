"""The numbers of a run that tables and pictures show, by the names of their columns."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean

from torch import Tensor

from ccl.evaluation import AccuracyMatrix, forgetting, forward_transfer, plasticity, standard_error
from ccl.runs.run_folder import RunRecord

Measure = Callable[[RunRecord], float]  # nan where it doesn't exist


def _of_matrix(read: Callable[[AccuracyMatrix], Tensor | float]) -> Measure:
    return lambda record: math.nan if record.accuracy is None else float(read(record.accuracy))


all_classes: Measure = attrgetter("all_classes")  # the headline
all_classes_of_matrix = _of_matrix(lambda matrix: matrix.all_class_total[-1])


def above_random(record: RunRecord) -> float:
    """The headline above the accuracy before training; nan where these are of different probes."""
    if record.accuracy is None or record.has_paper_probe:
        return math.nan
    return record.all_classes - float(record.accuracy.random_total)


@_of_matrix
def forgotten(matrix: AccuracyMatrix) -> float:
    """Forgetting in percentage points; needs every row of the matrix, else the last would be taken for the best."""
    return math.nan if matrix.per_step.isnan().any() else forgetting(matrix.per_step)


@_of_matrix
def learned(matrix: AccuracyMatrix) -> float:
    """Plasticity in percent; needs a probe after every step."""
    return math.nan if matrix.per_step.diagonal().isnan().any() else plasticity(matrix.per_step)


@_of_matrix
def transferred(matrix: AccuracyMatrix) -> float:
    """Forward Transfer over the random initialisation in percentage points."""
    if matrix.per_step.isnan().any() or matrix.random_per_step.isnan().any():
        return math.nan
    return forward_transfer(matrix.per_step, matrix.random_per_step)


def error_by_test_set(record: RunRecord) -> float:
    """Standard error of the accuracy on all classes in points, over draws of as many test images, not over seeds."""
    accuracy, sizes = all_classes(record), record.num_test_images
    return math.nan if sizes is None or math.isnan(accuracy) else standard_error(accuracy, sum(sizes))


def training_effort(record: RunRecord) -> float:
    """CPU time of training epochs, which other work on the machine changes less; on a GPU the time they took."""
    is_on_cpu = str(record.protocol.get("device", "")).startswith("cpu")
    return _seconds("epoch", "cpu_seconds" if is_on_cpu else "seconds")(record)


def _seconds(kind: str, clock: str = "seconds") -> Measure:
    def measure(record: RunRecord) -> float:
        rows = [row for row in record.rows if row["kind"] == kind]
        return sum(float(row.get(clock, row.get("seconds", 0.0))) for row in rows) or math.nan

    return measure


def _stored(what: str) -> Measure:
    return lambda record: float(record.status.get("stored_bytes", {}).get(what, math.nan)) / 1e3


STORED = ("images (kB)", "vectors (kB)", "networks (kB)")  # that a run's learner held when its stream had ended
# The numbers of a run by the names of their columns; accuracies of each step's own probe are means over steps.
MEASURES: dict[str, Measure] = {
    "All classes (%)": all_classes,
    "Mean of steps (%)": _of_matrix(lambda matrix: matrix.per_step[-1].mean()),
    "First step, after it (%)": _of_matrix(lambda matrix: matrix.per_step[0, 0]),
    "First step, at the end (%)": _of_matrix(lambda matrix: matrix.per_step[-1, 0]),
    "Plasticity (%)": learned,
    "Forgetting ↓": forgotten,
    "Forward Transfer ↑": transferred,
    "Training (s)": _seconds("epoch"),
    "Probes (s)": _seconds("probe"),
    "Memory (MB)": lambda record: float(record.status.get("peak_memory_bytes", math.nan)) / 1e6,  # with Python, torch
    **{column: _stored(column.split()[0]) for column in STORED},
}


def random_accuracy(records: Sequence[RunRecord]) -> tuple[list[float], float]:
    """Accuracy of random initialisation on each of T steps and on all classes, nan if unknown; equal ones once."""
    num_steps = len(records[0].step_names)
    measured = {
        (*record.accuracy.random_per_step.tolist(), float(record.accuracy.random_total))
        for record in records
        if record.accuracy is not None
        and record.accuracy.num_steps == num_steps
        and not record.accuracy.random_per_step.isnan().any()
    }
    if not measured:
        return [math.nan] * num_steps, math.nan
    *per_step, total = map(fmean, zip(*sorted(measured), strict=True))
    return per_step, total
