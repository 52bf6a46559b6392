"""Numbers of one run that tables and figures average over seeds; nan where one doesn't exist."""

import math

from ccl.evaluation import forgetting, forward_transfer
from ccl.report.run_folder import RunRecord


def all_classes(record: RunRecord) -> float:
    """The probe over all classes of the stream after the last step, in percent."""
    return record.final_accuracy


def mean_of_steps(record: RunRecord) -> float:
    """The mean of each step's own probe after the last step, in percent."""
    return math.nan if record.accuracy is None else float(record.accuracy.per_step[-1].mean())


def first_step_after_it(record: RunRecord) -> float:
    """The first step's own probe right after that step, in percent."""
    return math.nan if record.accuracy is None else float(record.accuracy.per_step[0, 0])


def first_step_at_the_end(record: RunRecord) -> float:
    """The first step's own probe after the last step, in percent."""
    return math.nan if record.accuracy is None else float(record.accuracy.per_step[-1, 0])


def forgotten(record: RunRecord) -> float:
    """Forgetting in percentage points; needs every row of the matrix, else the last would be taken for the best."""
    matrix = record.accuracy
    return math.nan if matrix is None or matrix.per_step.isnan().any() else forgetting(matrix.per_step)


def transferred(record: RunRecord) -> float:
    """Forward Transfer over the random initialisation in percentage points."""
    matrix = record.accuracy
    if matrix is None or matrix.per_step.isnan().any() or matrix.random_per_step.isnan().any():
        return math.nan
    return forward_transfer(matrix.per_step, matrix.random_per_step)


def training_seconds(record: RunRecord) -> float:
    """Time spent in training epochs."""
    return record.seconds or math.nan


def probe_seconds(record: RunRecord) -> float:
    """Time spent in probes, of the rows that tell it."""
    return sum(float(row.get("seconds", 0.0)) for row in record.rows if row["kind"] == "probe") or math.nan


def peak_megabytes(record: RunRecord) -> float:
    """The most memory the process held, in units of 10^6 bytes."""
    return float(record.status.get("peak_memory_bytes", math.nan)) / 1e6


def folder_megabytes(record: RunRecord) -> float:
    """What the run folder takes on disk, in units of 10^6 bytes."""
    sizes = [path.stat().st_size for path in record.folder.rglob("*") if path.is_file()]
    return sum(sizes) / 1e6 if sizes else math.nan
