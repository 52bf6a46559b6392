"""The strategies of the paper as rows of parts: what is kept of a step, and which terms keep the past."""

from dataclasses import dataclass
from typing import Final, Literal

SelectionMethod = Literal["random", "view_variance"]
RANDOM: Final = "random"
VIEW_VARIANCE: Final = "view_variance"
DISTILLATION: Final = "distillation"
EXTRA_SAMPLE_QUEUE: Final = "extra_sample_queue"


@dataclass(frozen=True)
class Strategy:
    """One row: how images are chosen for the rehearsal memory (None: no memory) and the parts that use it."""

    selection: SelectionMethod | None = None
    retention: tuple[str, ...] = ()
    all_at_once: bool = False  # the whole stream as one step, for as many epochs as a step has


STRATEGIES: dict[str, Strategy] = {
    "finetuning": Strategy(),
    "simple_rehearsal": Strategy(RANDOM),
    # The rows of the paper's ablation between Simple Rehearsal and the whole method.
    "variance_rehearsal": Strategy(VIEW_VARIANCE),
    "variance_distillation": Strategy(VIEW_VARIANCE, (DISTILLATION,)),
    "ccl": Strategy(VIEW_VARIANCE, (DISTILLATION, EXTRA_SAMPLE_QUEUE)),
    # Rows that the paper does not show: each part alone.
    "variance_queue": Strategy(VIEW_VARIANCE, (EXTRA_SAMPLE_QUEUE,)),
    "random_ccl": Strategy(RANDOM, (DISTILLATION, EXTRA_SAMPLE_QUEUE)),
    "upper_bound": Strategy(all_at_once=True),
}

TITLES: dict[str, str] = {
    "finetuning": "Finetuning",
    "simple_rehearsal": "Simple Rehearsal",
    "variance_rehearsal": "+ variance sampling",
    "variance_distillation": "+ distillation",
    "ccl": "CCL",
    "variance_queue": "variance sampling + ESQ",
    "random_ccl": "CCL, random sampling",
    "upper_bound": "Upper Bound",
}


def matters(setting: str, strategy: str, objective: str) -> bool:
    """Whether a run of this strategy and objective looks at a setting (`a.b`); unknown strategies look at all."""
    row = STRATEGIES.get(strategy)
    section, _, rest = setting.partition(".")
    part = rest if section == "weights" else section
    if section in ("moco_v2", "insdisc"):
        return section == objective
    if row is None:
        return True
    if part in (DISTILLATION, EXTRA_SAMPLE_QUEUE):
        return part in row.retention
    if section == "weights":
        return bool(row.retention)
    return row.selection is not None if section == "memory" else True
