"""Runs grouped into arms: everything equal but the seed, so that their numbers may be averaged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccl.catalogue import title_of
from ccl.compatibility import matters
from ccl.errors import UserError
from ccl.report.seed_statistics import Estimate, estimate
from ccl.runs.run_folder import RunRecord
from ccl.settings import Settings, own_defaults
from ccl.strategies import strategy_title

Measure = Callable[[RunRecord], float]  # nan where it doesn't exist

# Where things lie and how they are saved, watched and spread over cores: not part of what was measured.
# Threads change bits, not the experiment.
_ASIDE = frozenset({"data.root", "data.download", "data.workers", "threads", "device", "trackers"})
_SEEDS = frozenset({"seed", "data.seed"})
_IN_THE_NAME = frozenset({"strategy", "objective", "steps"}) | _SEEDS


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: a strategy with all its settings, over one or several seeds."""

    name: str
    records: tuple[RunRecord, ...]  # ascending, different seeds of the run or of its order

    @property
    def strategy(self) -> str:
        return self.records[0].settings.strategy

    @property
    def settings(self) -> Settings:
        """Of its first seed."""
        return self.records[0].settings

    @property
    def is_all_at_once(self) -> bool:
        return bool(self.records[0].protocol.get("all_at_once"))

    @property
    def step_names(self) -> list[str]:
        return self.records[0].step_names

    def values(self, measure: Measure) -> dict[tuple[int, int], float]:
        """What was measured, by seeds; runs without a number are left out."""
        found = {seeds_of(record): measure(record) for record in self.records}
        return {seeds: value for seeds, value in found.items() if not math.isnan(value)}

    def estimate(self, measure: Measure) -> Estimate | None:
        """The mean over seeds; None where no seed has the number."""
        found = list(self.values(measure).values())
        return estimate(found) if found else None


def seeds_of(record: RunRecord) -> tuple[int, int]:
    """What two runs of an arm differ in: the run's seed, and that of the stream's order."""
    return record.settings.seed, record.settings.stream_seed


def records_of(arms: Sequence[Arm]) -> list[RunRecord]:
    """All runs, arm by arm."""
    return [record for arm in arms for record in arm.records]


def has_seeds(arms: Sequence[Arm]) -> bool:
    """Whether any arm has more than one."""
    return any(len(arm.records) > 1 for arm in arms)


def of_equal_steps(arms: Sequence[Arm]) -> dict[int, list[Arm]]:
    """Arms by their number of steps T; an Upper Bound also stands where its objective has none of that T."""
    counts = {len(arm.step_names) for arm in arms if not arm.is_all_at_once} or {len(arms[0].step_names)}
    at_once = {(arm.settings.objective, len(arm.step_names)) for arm in arms if arm.is_all_at_once}

    def belongs(arm: Arm, num_steps: int) -> bool:
        is_lent = arm.is_all_at_once and (arm.settings.objective, num_steps) not in at_once
        return len(arm.step_names) == num_steps or is_lent

    return {count: [arm for arm in arms if belongs(arm, count)] for count in sorted(counts)}


def make_arms(records: Sequence[RunRecord]) -> list[Arm]:
    """Arms in the order of their first run, each named by what sets it apart from the others."""
    if not records:
        raise UserError("no runs to report on")
    varied = varied_settings(records)
    groups: dict[tuple[str, int], list[RunRecord]] = {}
    for record in records:
        key = repr({name: value for name, value in flat(record.settings).items() if name not in _SEEDS})
        repeat = 0  # a second run of the same seed is not a second seed
        while any(seeds_of(known) == seeds_of(record) for known in groups.get((key, repeat), [])):
            repeat += 1
        groups.setdefault((key, repeat), []).append(record)
    names = [_name(members[0], varied) for members in groups.values()]
    arms = []
    for name, members in zip(names, groups.values(), strict=True):
        own = f"{name} ({members[0].folder})" if names.count(name) > 1 else name
        arms.append(Arm(own, tuple(sorted(members, key=seeds_of))))
    return arms


def varied_settings(records: Sequence[RunRecord]) -> list[str]:
    """The settings, as `a.b`, that are not the same in all runs, of those that may change a number.

    What a strategy or an objective brings along as its own default belongs to its name, and was not varied.
    """
    every = [flat(record.settings) for record in records]
    return [
        name
        for name in every[0]
        if len({repr(values[name]) for values in every}) > 1 and not _comes_with_rows(name, records)
    ]


def _comes_with_rows(name: str, records: Sequence[RunRecord]) -> bool:
    """Whether runs differ in a setting only where one has its strategy's or its objective's own default."""
    by_row: dict[tuple[str, str], set[str]] = {}
    others: set[str] = set()
    for record in records:
        settings = record.settings
        value = repr(flat(settings)[name])
        by_row.setdefault((settings.objective, settings.strategy), set()).add(value)
        wanted = _flattened(own_defaults(settings.objective, settings.strategy))
        if name not in wanted or repr(wanted[name]) != value:
            others.add(value)
    return len(others) <= 1 and all(len(values) == 1 for values in by_row.values())


def flat(settings: Settings) -> dict[str, Any]:
    """Every setting that may change a number, as `a.b`."""
    found = _flattened(settings.model_dump())
    return {key: part for key, part in found.items() if key not in _ASIDE and not key.startswith("checkpoint.")}


def _flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of sections as `a.b`, beside those without a section."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _name(record: RunRecord, varied: Sequence[str]) -> str:
    """The strategy's title and what is varied: its objective, number of steps and other settings."""
    settings, values = record.settings, flat(record.settings)
    parts = [strategy_title(settings.strategy)]
    if "objective" in varied:
        parts.append(title_of(settings.objective))
    if "steps" in varied and not record.protocol.get("all_at_once"):
        parts.append(f"T = {len(record.step_names)}")
    others = [name for name in varied if name not in _IN_THE_NAME]
    looked_at = [name for name in others if matters(name, settings.strategy, settings.objective)]
    return ", ".join([*parts, *(f"{name}={as_typed(values[name])}" for name in looked_at)])


def as_typed(value: Any) -> str:
    """A setting's value as one types it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
