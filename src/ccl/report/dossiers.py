"""How each run was made, without saying anything twice: facts of all runs, of an arm, and of a single run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ccl.loading import dump_settings
from ccl.report.run_folder import RunRecord
from ccl.report.run_groups import Arm
from ccl.report.tables import Table

Facts = dict[str, str]


@dataclass(frozen=True)
class Dossier:
    """What sets one arm's runs apart from all others, and its settings."""

    name: str
    facts: Facts  # of all its runs
    runs: Table | None  # a row per run with the facts in which they differ; None where there are none
    settings: str  # of the first seed


def dossiers(arms: Sequence[Arm]) -> tuple[Facts, list[Dossier]]:
    """The facts that all runs share, and each arm's own."""
    told = [[facts(record) for record in arm.records] for arm in arms]
    everywhere = _shared([stamp for stamps in told for stamp in stamps])
    found = []
    for arm, stamps in zip(arms, told, strict=True):
        own = [{key: value for key, value in stamp.items() if key not in everywhere} for stamp in stamps]
        shared = _shared(own)
        keys = list(dict.fromkeys(key for stamp in own for key in stamp if key not in shared))
        seeds = [f"seed {record.settings.seed}" for record in arm.records]
        rows = tuple((seed, *(stamp.get(key) for key in keys)) for seed, stamp in zip(seeds, own, strict=True))
        runs = Table(f"Runs of {arm.name}", ("Run", *keys), rows, "") if keys else None
        found.append(Dossier(arm.name, shared, runs, dump_settings(arm.settings)))
    return everywhere, found


def facts(record: RunRecord) -> Facts:
    """All that a run's stamp, status and probes tell, by name."""
    found = {"folder": str(record.folder)}
    found |= {f"status: {key.replace('_', ' ')}": _plain(key, value) for key, value in record.status.items()}
    found |= {key.replace("_", " "): _plain(key, value) for key, value in record.protocol.items() if key != "steps"}
    for number, step in enumerate(record.protocol["steps"], 1):
        about = [f"{_plain(key, value)} {key.removeprefix('num_')}" for key, value in step.items() if key != "name"]
        found[f"step {number}"] = f"{step['name']}: {', '.join(about)}"
    if probes := dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe"):
        found["probe protocol"] = "; ".join(probes)
    if paper := [f"{row['accuracy']:.1f} %" for row in record.rows if row["kind"] == "paper_probe"]:
        found["all classes by the paper's probe"] = ", ".join(paper)
    return found


def _shared(stamps: Sequence[Facts]) -> Facts:
    first, *others = stamps
    return {key: value for key, value in first.items() if all(stamp.get(key) == value for stamp in others)}


def _plain(key: str, value: Any) -> str:
    if key in ("started", "updated") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
