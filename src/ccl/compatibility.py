"""What goes with what, read off the rows of strategies and parts: refusals with advice, and which settings matter."""

from ccl.catalogue import (
    BACKBONES,
    CLUSTERS,
    COMPOSITIONS,
    MEMORY,
    OBJECTIVES,
    OLD_IMAGES,
    RETENTION,
    SELECTIONS,
    WEIGHT_RULES,
)
from ccl.strategies import STRATEGIES, Strategy


def refusal(strategy: str, method: Strategy, objective: str) -> str:
    """Why a strategy's parts don't go together, in one line with the nearest choice that does; empty where they do."""
    parts = {name: RETENTION[name] for name in method.retention} | {
        method.composition: COMPOSITIONS[method.composition]
    }
    if method.weight_rule:
        parts[method.weight_rule] = WEIGHT_RULES[method.weight_rule]
    given = OBJECTIVES[objective].gives | COMPOSITIONS[method.composition].gives
    given |= {MEMORY} if method.selection else frozenset()
    owners = {MEMORY: f"strategy {strategy}", OLD_IMAGES: f"composition {method.composition}"}
    for name, part in parts.items():
        for need in sorted(part.needs - given):
            owner = owners.get(need, f"objective {objective}")
            return f"{name} needs {need}, and {owner} has none; {_advice(name, need)}"
    return ""


def backbone_refusal(objective: str, backbone: str) -> str:
    """Why an objective can't learn with a backbone, in one line with one that it can; empty where it can."""
    row = BACKBONES.get(backbone)  # what a backbone of others gives is not known
    for need in sorted(OBJECTIVES[objective].needs - (row.gives if row else frozenset())):
        able = [name for name, other in BACKBONES.items() if need in other.gives]
        return (
            f"objective {objective} needs {need}, and encoder.backbone {backbone} gives none; "
            f"set encoder.backbone={able[0]}"
        )
    return ""


def _advice(part: str, need: str) -> str:
    """The nearest choice that makes sense."""
    if need == MEMORY:
        return "try strategy=simple_rehearsal"
    if need == OLD_IMAGES:
        return "try composition=share"
    if part in COMPOSITIONS:
        return "try composition=pooled"
    objectives = [name for name, row in OBJECTIVES.items() if need in row.gives]
    return f"set weights.{part}=0, or objective={objectives[0]}"


def asks_clusters(selection: str, per_cluster: int, has_budget: bool) -> bool:
    """Whether a selection must know the number of clusters: to know how many images to keep, or to look at them."""
    return CLUSTERS in SELECTIONS[selection].needs if has_budget else per_cluster > 0


def matters(setting: str, strategy: str, objective: str) -> bool:
    """Whether a run of this strategy and objective looks at a setting (`a.b`); unknown strategies look at all."""
    row = STRATEGIES.get(strategy)
    section, _, rest = setting.partition(".")
    part = rest if section == "weights" else section
    if section in OBJECTIVES:
        return section == objective
    if row is None:
        return True
    if part in RETENTION:
        return part in row.retention
    if part in COMPOSITIONS:
        return part == row.composition
    if part in WEIGHT_RULES:
        return part == row.weight_rule
    if section == "weights":
        return bool(row.retention)
    return row.selection is not None if section == "memory" else True
