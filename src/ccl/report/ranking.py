"""The arms of a comparison by their accuracy, with what each costs, stores and takes from labels."""

import math
from collections.abc import Sequence

from ccl.compatibility import asks_clusters
from ccl.report import measures
from ccl.report.comparisons import partners
from ccl.report.run_groups import Arm, Measure, has_seeds
from ccl.report.tables import Cell, Table, interval
from ccl.runs.run_folder import RunRecord
from ccl.settings import Settings
from ccl.strategies import STRATEGIES

_STORED = {"images": "Images (kB)", "vectors": "Vectors (kB)", "networks": "Networks (kB)"}

_INTERVALS = "95 % interval: of the mean over seeds; where two overlap, the paired differences decide. "
_NOTE = (
    "Time: of training (on a CPU, of the processor), as a multiple of Finetuning's with the same objective and steps; "
    "memory: the most that the process held, with Python and torch, likewise. "
    "Stored when the stream has ended, beside the encoder itself: images with their files' sizes; vectors such as "
    "queues and banks; other networks such as teachers, predictors and an objective's own key encoder. Labels: what "
    "the method takes from them; steps cut by classes and probes use them in every row alike."
)


def ranking(arms: Sequence[Arm]) -> Table:
    """A row per arm, the highest accuracy on all classes first; those that were not probed come last."""
    columns = ("Strategy", "All classes (%)", "95 % interval", "Time", "Memory", *_STORED.values(), "Labels")
    ranked = sorted(arms, key=lambda arm: -_mean(arm, measures.all_classes, otherwise=-math.inf))
    return Table(
        "Ranked by accuracy, with what each method costs and stores",
        columns,
        tuple(_row(arm, arms) for arm in ranked),
        (_INTERVALS if has_seeds(arms) else "") + _NOTE,
        ("Networks (kB)", "Vectors (kB)", "Memory", "Images (kB)"),
    )


def _row(arm: Arm, arms: Sequence[Arm]) -> tuple[Cell, ...]:
    accuracy = arm.estimate(measures.all_classes)
    return (
        arm.name,
        accuracy,
        None if accuracy is None else interval(accuracy.low, accuracy.high),
        _times(relative(measures.training_effort, arm, arms)),
        _times(relative(measures.peak_megabytes, arm, arms)),
        *(_known(_mean(arm, stored(what))) for what in _STORED),
        labels_used(arm.settings),
    )


def relative(price: Measure, arm: Arm, arms: Sequence[Arm]) -> float | None:
    """The mean of a price over that of Finetuning; None where either is not known."""
    found = [_mean(one, price) for one in (arm, *_baseline(arm, arms))]
    return None if len(found) < 2 or any(map(math.isnan, found)) or not found[1] else found[0] / found[1]


def _baseline(arm: Arm, arms: Sequence[Arm]) -> list[Arm]:
    """The Finetuning that an arm's prices are relative to, if there is one."""
    return [arm] if arm.strategy == "finetuning" else partners(arm, arms, "finetuning")[:1]


def stored(what: str) -> Measure:
    """Kilobytes of a kind that a run's learner held when its stream had ended; runs of older versions don't say."""

    def measure(record: RunRecord) -> float:
        return float(record.status.get("stored_bytes", {}).get(what, math.nan)) / 1e3

    return measure


def labels_used(settings: Settings) -> str:
    """What a run's method takes from labels."""
    row, memory = STRATEGIES.get(settings.strategy), settings.memory
    selection = row.selection and (memory.selection or row.selection) if row else None
    if not selection or memory.clusters is not None:
        return "none"
    return "number of classes" if asks_clusters(selection, memory.per_cluster, memory.budget is not None) else "none"


def _mean(arm: Arm, measure: Measure, otherwise: float = math.nan) -> float:
    found = arm.estimate(measure)
    return otherwise if found is None else found.mean


def _times(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.2f}×"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
