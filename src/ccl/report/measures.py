"""Numbers of one run that tables and figures average over seeds; nan where one doesn't exist."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ccl.evaluation import AccuracyMatrix, forgetting, forward_transfer, plasticity, standard_error
from ccl.report.run_groups import Measure
from ccl.runs.run_folder import RunRecord


def _of_matrix(read: Callable[[AccuracyMatrix], Tensor | float]) -> Measure:
    return lambda record: math.nan if record.accuracy is None else float(read(record.accuracy))


# In percent: one probe over all classes of the stream, and each step's own probe, after the last step or its first.
all_classes_of_matrix = _of_matrix(lambda matrix: matrix.all_class_total[-1])
mean_of_steps = _of_matrix(lambda matrix: matrix.per_step[-1].mean())
first_step_after_it = _of_matrix(lambda matrix: matrix.per_step[0, 0])
first_step_at_the_end = _of_matrix(lambda matrix: matrix.per_step[-1, 0])


def all_classes(record: RunRecord) -> float:
    """The headline: one probe over all classes after the last step, by the paper's protocol where a run has it."""
    return record.all_classes


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
    """Standard error of the accuracy on all classes in points: what another draw of as many test images would change.

    Seeds share their test images, so it does not shrink with the number of seeds.
    """
    accuracy, sizes = all_classes(record), record.num_test_images
    return math.nan if sizes is None or math.isnan(accuracy) else standard_error(accuracy, sum(sizes))


def training_seconds(record: RunRecord) -> float:
    """Time spent in training epochs."""
    return _seconds(record.rows, "epoch")


def training_effort(record: RunRecord) -> float:
    """CPU time of training epochs, which other work on the machine changes less; on a GPU the time they took."""
    is_on_cpu = str(record.protocol.get("device", "")).startswith("cpu")
    return _seconds(record.rows, "epoch", "cpu_seconds" if is_on_cpu else "seconds")


def probe_seconds(record: RunRecord) -> float:
    """Time spent in probes."""
    return _seconds(record.rows, "probe")


def _seconds(every: Sequence[Mapping[str, Any]], kind: str, clock: str = "seconds") -> float:
    rows = [row for row in every if row["kind"] == kind]
    if any(clock not in row for row in rows):  # of an older version
        clock = "seconds"
    return sum(float(row.get(clock, 0.0)) for row in rows) or math.nan


def peak_megabytes(record: RunRecord) -> float:
    """The most memory the process held, in units of 10^6 bytes."""
    return float(record.status.get("peak_memory_bytes", math.nan)) / 1e6


def folder_megabytes(record: RunRecord) -> float:
    """What the run folder takes on disk, in units of 10^6 bytes."""
    sizes = [path.stat().st_size for path in record.folder.rglob("*") if path.is_file()]
    return sum(sizes) / 1e6 if sizes else math.nan
