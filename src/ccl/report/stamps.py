"""What a number must be read with, and whether several may stand in one table."""

from collections.abc import Sequence

from ccl.report.run_folder import RunRecord
from ccl.report.run_groups import Arm, varied_settings

# Facts of the data and the measurement that must agree for numbers to answer one question. What settings say is told
# by the names of the arms; seeds, machines and versions are listed.
_MUST_AGREE = ("dataset", "dataset fingerprint", "probe")
_AXES = frozenset({"strategy", "objective", "steps", "seed"})


def facts(record: RunRecord) -> dict[str, str]:
    """A run's protocol stamp; empty where something is unknown."""
    settings, told = record.settings, {key: str(value) for key, value in record.protocol.items()}
    probes = dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe")
    encoder = settings.encoder
    return {
        "dataset": told.get("dataset", ""),
        "dataset fingerprint": told.get("fingerprint", ""),
        "stream": settings.stream_kind,
        "class order": told.get("class_order", ""),
        "steps (T)": str(len(record.step_names)),
        "backbone": told.get("backbone", "") + (f" of width {encoder.width}" if encoder.width else ""),
        "stem": told.get("stem", ""),
        "epochs per step": str(settings.epochs),
        "batch size": str(settings.batch_size),
        "views": told.get("views", ""),
        "probe": ", ".join(probes),
        "seed": told.get("seed", ""),
        "device": told.get("device", ""),
        "threads": told.get("threads", ""),
        "processes": told.get("world_size", "1"),  # runs that don't say so had one
        "ccl": told.get("ccl", ""),
        "code": told.get("code", ""),
        "torch": told.get("torch", ""),
        "Python": told.get("python", ""),
    }


def note(arms: Sequence[Arm]) -> str:
    """Below a table: what can't be compared, what is not complete, and the protocol of all its numbers."""
    records = [record for arm in arms for record in arm.records]
    stamps = [facts(record) for record in records]
    found = {key: list(dict.fromkeys(stamp[key] for stamp in stamps if stamp[key])) for key in stamps[0]}
    sentences = []
    if different := _different(records, stamps, found):
        sentences.append(f"These runs differ in {', '.join(different)}: their numbers can't be compared as they stand.")
    states = [(arm.name, record) for arm in arms for record in arm.records]
    unfinished = [
        f"{name}, seed {record.settings.seed} ({record.status.get('state', 'unknown')})"
        for name, record in states
        if record.status.get("state") != "complete"
    ]
    if unfinished:
        sentences.append(f"Not complete: {'; '.join(unfinished)}.")
    if len(found["class order"]) > 4:
        found["class order"] = [f"{len(found['class order'])} orders, by seed and T"]
    protocol = "; ".join(f"{key} {' / '.join(values) or 'unknown'}" for key, values in found.items())
    return " ".join([*sentences, f"Protocol: {protocol}."])


def _different(
    records: Sequence[RunRecord], stamps: Sequence[dict[str, str]], found: dict[str, list[str]]
) -> list[str]:
    """Names of facts and settings, beside the axes of a comparison, in which runs differ."""
    different = [key for key in _MUST_AGREE if len(found[key]) > 1]
    orders: dict[tuple[str, str], set[str]] = {}
    for stamp in stamps:
        # A seed draws the order of classes: runs of one seed and number of steps must have the same.
        orders.setdefault((stamp["seed"], stamp["steps (T)"]), set()).add(stamp["class order"])
    if any(len(of_one) > 1 for of_one in orders.values()):
        different.append("class order")
    return different + [name for name in varied_settings(records) if name not in _AXES and name not in different]
