"""What runs cost: time, memory and room on disk."""

from collections.abc import Sequence

from ccl.report import measures
from ccl.report.run_groups import Arm, Measure
from ccl.report.statistics import estimate
from ccl.report.tables import Cell, Table

MEASURES: dict[str, Measure] = {
    "Training (s)": measures.training_seconds,
    "Probes (s)": measures.probe_seconds,
    "Peak memory (MB)": measures.peak_megabytes,
    "On disk (MB)": measures.folder_megabytes,
}


def costs(arms: Sequence[Arm]) -> Table:
    """A row per arm, mean and standard deviation over seeds."""
    rows: list[tuple[Cell, ...]] = []
    for arm in arms:
        found = [list(arm.values(measure).values()) for measure in MEASURES.values()]
        rows.append((arm.name, *(estimate(values) if values else None for values in found)))
    stamps = [record.protocol for arm in arms for record in arm.records]
    devices = dict.fromkeys(
        f"{stamp.get('device', 'unknown')}, threads: {stamp.get('threads', 'unknown')}" for stamp in stamps
    )
    spread = "; mean ± standard deviation over seeds" if any(len(arm.records) > 1 for arm in arms) else ""
    note = (
        f"Measured on: {'; '.join(devices)}. Times of one machine under one load can be compared, others can't. "
        "Peak memory: of the whole process, with Python and torch. On disk: checkpoints, weights and kept images too."
    )
    return Table(f"Per run{spread}", ("Strategy", *MEASURES), tuple(rows), note)
