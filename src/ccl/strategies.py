"""Strategies as rows of parts: what is kept of a step, what a batch holds, and which terms keep the past.

And what goes with what, read off the rows of strategies and parts: refusals with advice, and which settings matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ccl.catalogue import (
    BACKBONES,
    CLUSTERS,
    COMPOSITIONS,
    MEMORY,
    OBJECTIVES,
    OLD_IMAGES,
    PATCHES,
    RETENTION,
    WEIGHT_RULES,
    as_words,
    part_name,
    row_of,
)

RANDOM: Final = "random"
VIEW_VARIANCE: Final = "view_variance"


@dataclass(frozen=True)
class Strategy:
    """One row: how images are chosen for the rehearsal memory (None: no memory) and the parts that use it."""

    title: str = ""  # where it has none, its name as words
    selection: str | None = None
    retention: tuple[str, ...] = ()  # names of the catalogue's rows
    composition: str = "pooled"
    weight_rule: str | None = None  # what becomes of the weights between updates or steps
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings, by sections, where this strategy is chosen
    all_at_once: bool = False  # the whole stream as one step, for as many epochs as a step has
    about: str = ""  # one line
    source: str = ""  # where it was published


_WHOLE_CONTRAST: Final[Mapping[str, Any]] = {"weights": {"contrast": 1.0}}

STRATEGIES: dict[str, Strategy] = {
    "finetuning": Strategy(about="each step is learned where the one before it ended", source="common baseline"),
    "simple_rehearsal": Strategy(
        selection=RANDOM,
        about="images of earlier steps, drawn at random, are learned along with the new ones",
        source="CCL, ICME 2022",
    ),
    # The rows of the paper's ablation between Simple Rehearsal and the whole method.
    "variance_rehearsal": Strategy(
        "+ variance sampling",
        VIEW_VARIANCE,
        about="as Simple Rehearsal, with the best-learned images of each cluster",
        source="CCL, ICME 2022",
    ),
    "variance_distillation": Strategy(
        "+ distillation",
        VIEW_VARIANCE,
        ("distillation",),
        about="variance sampling, and a momentum teacher for the similarities between old images",
        source="CCL, ICME 2022",
    ),
    "ccl": Strategy(
        "CCL",
        VIEW_VARIANCE,
        ("distillation", "extra_sample_queue"),
        about="variance sampling, the teacher, and every query is pushed from keys of old images",
        source="CCL, ICME 2022",
    ),
    # Rows that the paper does not show: each part alone, and old images as a share of every batch.
    "variance_queue": Strategy(
        "variance sampling + ESQ",
        VIEW_VARIANCE,
        ("extra_sample_queue",),
        about="CCL without its teacher",
        source="after CCL, ICME 2022",
    ),
    "random_ccl": Strategy(
        "CCL, random sampling",
        RANDOM,
        ("distillation", "extra_sample_queue"),
        about="CCL with images drawn at random",
        source="after CCL, ICME 2022",
    ),
    "shared_rehearsal": Strategy(
        selection=RANDOM,
        composition="share",
        about="a share of every batch are old images: what most of the field calls replay",
        source="common baseline",
    ),
    # The library's own recipes, found and proved in docs/results.md; `ccl learn` uses the first where it can.
    "multi_view_rehearsal": Strategy(
        "Multi-view Rehearsal",
        RANDOM,
        ("further_views",),
        composition="share",
        defaults={**_WHOLE_CONTRAST, "share": {"old": 0.5}, "further_views": {"share": 0.75}},
        about="half of every batch are old images, and the student sees one view more of most of these",
        source="this library",
    ),
    "balanced_rehearsal": Strategy(
        selection=RANDOM,
        retention=("predictive_distillation",),
        composition="share",
        defaults={
            **_WHOLE_CONTRAST,
            "share": {"old": 0.5},
            "predictive_distillation": {"space": "features", "predictor": "restart"},
        },
        about="half of every batch are old images, and a predictor finds the features from before the step",
        source="this library",
    ),
    "feature_prediction": Strategy(
        retention=("predictive_distillation",),
        defaults={
            "weights": {"contrast": 1.0, "predictive_distillation": 1.5},
            "predictive_distillation": {"space": "features", "predictor": "identity", "relative": True},
            "encoder": {"statistics": "accumulated"},
        },
        about="for people who may keep no image: a predictor that begins as the identity finds the features from "
        "before the step, and batch norms keep the statistics of all steps",
        source="this library, after PFR",
    ),
    "upper_bound": Strategy(
        all_at_once=True,
        about="all images at once, as if nothing had to be learned step by step",
        source="common baseline",
    ),
    # Rules for the weights, which keep no image, and one of them beside rehearsal.
    "weight_merging": Strategy(
        weight_rule="merge",
        about="after each step its weights meet those from before it",
        source="CoMA: Marouf et al., ECCV 2024",
    ),
    "weight_averaging": Strategy(
        weight_rule="average",
        about="what is used is a moving average of the weights over updates",
        source="Soutif-Cormerais et al., CoLLAs 2023",
    ),
    "merged_rehearsal": Strategy(
        selection=RANDOM,
        weight_rule="merge",
        about="Simple Rehearsal, and weights are merged after each step",
        source="after CoMA, ECCV 2024",
    ),
    # The field's other ways of keeping the past (docs/methods.md), whose contrast has weight 1.
    "cassle": Strategy(
        "CaSSLe",
        None,
        ("predictive_distillation",),
        defaults=_WHOLE_CONTRAST,
        about="a predictor turns present embeddings into those from before the step",
        source="Fini et al., CVPR 2022",
    ),
    "pfr": Strategy(
        "PFR",
        None,
        ("predictive_distillation",),
        # Half of the part's 2 − 2cos is −cos, with the weight 1 of the authors' port to CaSSLe; 25 in their first code.
        defaults={
            "weights": {"contrast": 1.0, "predictive_distillation": 0.5},
            "predictive_distillation": {"space": "features", "hidden": 256},
        },
        about="as CaSSLe, on the backbone's features",
        source="Gomez-Villa et al., CVPRW 2022",
    ),
    "predictive_rehearsal": Strategy(
        "CaSSLe+",
        RANDOM,
        ("predictive_distillation",),
        composition="share",
        defaults={**_WHOLE_CONTRAST, "share": {"old": 0.2}},
        about="a share of every batch are old images, and all of it is distilled as in CaSSLe",
        source="Mushtaq et al., ECCV 2024",
    ),
    "lump": Strategy(
        "LUMP",
        RANDOM,
        composition="lump",
        about="each new image is mixed with an old one, pixel by pixel",
        source="Madaan et al., ICLR 2022",
    ),
    "pnr": Strategy(
        "PNR",
        None,
        ("pnr",),
        defaults=_WHOLE_CONTRAST,
        about="embeddings from before the step are negatives too",
        source="Cha et al., ICML 2024",
    ),
    "osiris": Strategy(
        selection=RANDOM,
        retention=("cross_task",),
        composition="share",
        defaults={**_WHOLE_CONTRAST, "share": {"old": 0.43}},  # 192 beside 256 new ones
        about="a second head pushes new from old images, and keeps the old apart",
        source="Zhang et al., CoLLAs 2024",
    ),
    "cla": Strategy(
        "CLA",
        RANDOM,
        ("alignment",),
        composition="share",
        defaults=_WHOLE_CONTRAST,
        about="an aligner turns embeddings of old images into those of a slow average",
        source="Cignoni et al., CoLLAs 2025",
    ),
    "der": Strategy(
        "DER",
        RANDOM,
        ("der",),
        composition="share",
        defaults=_WHOLE_CONTRAST,
        about="features of old images stay near those stored with them",
        source="Buzzega et al., NeurIPS 2020; for self-supervision: Madaan et al., ICLR 2022",
    ),
}


def strategy_title(name: str) -> str:
    """A strategy's title; of one that no row has (a run of another version), its name as words."""
    return (STRATEGIES[name].title if name in STRATEGIES else "") or as_words(name)


def refusal(strategy: str, method: Strategy, objective: str, backbone: str | None = None) -> str:
    """Why parts don't go together, in one line with the nearest choice that does; empty where they do."""
    learned, composition = row_of("objective", objective), row_of("composition", method.composition)
    parts = {name: row_of("retention", name) for name in method.retention} | {method.composition: composition}
    if method.weight_rule:
        parts[method.weight_rule] = row_of("weight_rule", method.weight_rule)
    given = learned.gives | composition.gives
    given |= {MEMORY} if method.selection else frozenset()
    if backbone is None:  # any of them
        given |= {PATCHES}
    elif backbone in BACKBONES:  # what others give is not known
        given |= BACKBONES[backbone].gives
    owners = {MEMORY: f"strategy {strategy}", OLD_IMAGES: f"composition {method.composition}"}
    owners |= {PATCHES: f"encoder.backbone {backbone}"}
    for name, part in (parts | {f"objective {objective}": learned}).items():
        for need in sorted(part.needs - given):
            owner = owners.get(need, f"objective {objective}")
            return f"{name} needs {need}, and {owner} has none; {_advice(name, need)}"
    return ""


def _advice(part: str, need: str) -> str:
    """Name the nearest valid choice."""
    if need == MEMORY:
        return "try strategy=simple_rehearsal"
    if need == OLD_IMAGES:
        return "try composition=share"
    if need == PATCHES:
        return f"set encoder.backbone={next(name for name, row in BACKBONES.items() if need in row.gives)}"
    if part in COMPOSITIONS:
        return "try composition=pooled"
    objectives = [name for name, row in OBJECTIVES.items() if need in row.gives]
    return f"set weights.{part_name(part)}=0, or objective={objectives[0]}"


def asks_clusters(selection: str, per_cluster: int, has_budget: bool) -> bool:
    """Whether a selection must know the number of clusters: to know how many images to keep, or to look at them."""
    return CLUSTERS in row_of("memory.selection", selection).needs if has_budget else per_cluster > 0


def matters(setting: str, strategy: str, objective: str) -> bool:
    """Whether a run of this strategy and objective looks at a setting (`a.b`); unknown strategies look at all."""
    row = STRATEGIES.get(strategy)
    section, _, rest = setting.partition(".")
    part = rest if section == "weights" else section
    if section in OBJECTIVES:
        return section == objective
    if row is None:
        return True
    if part in {**RETENTION, **COMPOSITIONS, **WEIGHT_RULES}:
        return part in (*row.retention, row.composition, row.weight_rule)
    if section == "weights":
        return bool(row.retention)
    return row.selection is not None if section == "memory" else True
