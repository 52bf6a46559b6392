"""How runs were made: the protocol stamp that a number must be read with, and every fact of every run, each once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ccl.evaluation.paper_probe import PAPER_PROTOCOL
from ccl.loading import dump_settings
from ccl.report.run_groups import Arm, records_of, seeds_of, varied_settings
from ccl.report.tables import Table
from ccl.runs.run_folder import RunRecord

Facts = dict[str, str]

# Facts of the data and the measurement that must agree for numbers to answer one question. The names of the arms show
# what differs in the settings; seeds, machines and versions are listed.
_MUST_AGREE = ("dataset", "dataset fingerprint", "probe")
_AXES = frozenset({"strategy", "objective", "steps", "seed"})


def stamp(record: RunRecord) -> Facts:
    """A run's protocol in fixed fields; empty where something is unknown."""
    settings, protocol = record.settings, {key: str(value) for key, value in record.protocol.items()}
    width = settings.encoder.width
    return {
        "dataset": protocol.get("dataset", ""),
        "dataset fingerprint": protocol.get("fingerprint", ""),
        "stream": settings.stream_kind,
        "class order": protocol.get("class_order", ""),
        "steps (T)": str(len(record.step_names)),
        "backbone": protocol.get("backbone", "") + (f" of width {width}" if width else ""),
        "stem": protocol.get("stem", ""),
        "epochs per step": str(settings.epochs),
        "batch size": str(settings.batch_size),
        "views": protocol.get("views", ""),
        "probe": ", ".join(_probes(record)),
        "probed network": protocol.get("probed_network", "product"),  # older runs do not record it
        "seed": protocol.get("seed", ""),
        "device": protocol.get("device", ""),
        "threads": protocol.get("threads", ""),
        "processes": protocol.get("world_size", "1"),  # older runs do not record it: they had one
        "ccl": protocol.get("ccl", ""),
        "code": protocol.get("code", ""),
        "torch": protocol.get("torch", ""),
        "Python": protocol.get("python", ""),
    }


def reservations(arms: Sequence[Arm]) -> list[str]:
    """In sentences: what can't be compared, and what is not complete."""
    records = records_of(arms)
    sentences = []
    different = data_differences(records)
    different += [name for name in varied_settings(records) if name not in _AXES and name not in different]
    if different:
        sentences.append(f"These runs differ in {', '.join(different)}: their numbers can't be compared as they stand.")
    unfinished = [
        f"{arm.name}, seed {record.settings.seed} ({record.status.get('state', 'unknown')})"
        for arm in arms
        for record in arm.records
        if record.status.get("state") != "complete"
    ]
    if unfinished:
        sentences.append(f"Not complete: {'; '.join(unfinished)}.")
    return sentences


def protocol_line(arms: Sequence[Arm]) -> str:
    """The protocol of all numbers of these arms, each fact once."""
    values = _stamped(records_of(arms))
    if len(orders := values["class order"]) > 4:
        values["class order"] = [f"{len(orders)} orders, by seed and T"]
    protocol = "; ".join(f"{key} {' / '.join(found) or 'unknown'}" for key, found in values.items())
    return f"Protocol: {protocol}."


def data_differences(records: Sequence[RunRecord]) -> list[str]:
    """Names of the facts of data and measurement in which runs differ, so that no order of them means anything."""
    values = _stamped(records)
    different = [key for key in _MUST_AGREE if len(values[key]) > 1]
    # A seed draws the order of classes: runs of the same seeds and number of steps must have the same.
    orders = {(seeds_of(record), len(record.step_names), stamp(record)["class order"]) for record in records}
    return different + ["class order"] * (len(orders) > len({order[:2] for order in orders}))


def _stamped(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The values of each field of the stamps, each once."""
    stamps = [stamp(record) for record in records]
    return {key: list(dict.fromkeys(one[key] for one in stamps if one[key])) for key in stamps[0]}


@dataclass(frozen=True)
class ArmFacts:
    """What sets one arm's runs apart from all others, and its settings."""

    name: str
    facts: Facts  # of all its runs
    runs: Table | None  # a row per run with the facts in which they differ; None where they do not
    settings: str  # of the first seed


def facts_by_arm(arms: Sequence[Arm]) -> tuple[Facts, list[ArmFacts]]:
    """The facts that all runs share, and each arm's own."""
    every = [[run_facts(record) for record in arm.records] for arm in arms]
    everywhere = _shared([facts for of_arm in every for facts in of_arm])
    found = []
    for arm, of_arm in zip(arms, every, strict=True):
        own = [{key: value for key, value in facts.items() if key not in everywhere} for facts in of_arm]
        shared = _shared(own)
        keys = list(dict.fromkeys(key for facts in own for key in facts if key not in shared))
        seeds = [f"seed {record.settings.seed}" for record in arm.records]
        rows = tuple((seed, *(facts.get(key) for key in keys)) for seed, facts in zip(seeds, own, strict=True))
        runs = Table(f"Runs of {arm.name}", ("Run", *keys), rows, "") if keys else None
        found.append(ArmFacts(arm.name, shared, runs, dump_settings(arm.settings)))
    return everywhere, found


def run_facts(record: RunRecord) -> Facts:
    """All that a run's protocol, status and probes say, by name."""
    found = {"folder": str(record.folder)}
    found |= {f"status: {key.replace('_', ' ')}": _plain(key, value) for key, value in record.status.items()}
    found |= {key.replace("_", " "): _plain(key, value) for key, value in record.protocol.items() if key != "steps"}
    for number, step in enumerate(record.protocol["steps"], 1):
        about = [
            f"{_plain(key, value)} {key.removeprefix('num_').replace('_', ' ')}"
            for key, value in step.items()
            if key != "name"
        ]
        found[f"step {number}"] = f"{step['name']}: {', '.join(about)}"
    if probes := _probes(record):
        found["probe protocol"] = "; ".join(probes)
    if paper := [f"{row['accuracy']:.1f} %" for row in record.rows if row["kind"] == "paper_probe"]:
        found["all classes by the paper's probe"] = ", ".join(paper)
    return found


def _probes(record: RunRecord) -> list[str]:
    """The protocols by which a run was probed; where the headline has one of its own, that first."""
    found = dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe")
    return [f"{PAPER_PROTOCOL} (all classes)"] * record.has_paper_probe + list(found)


def _shared(every: Sequence[Facts]) -> Facts:
    first, *others = every
    return {key: value for key, value in first.items() if all(facts.get(key) == value for facts in others)}


def _plain(key: str, value: Any) -> str:
    if key in ("started", "updated") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
