"""Runs grouped into arms, everything equal but the seed, so that their numbers may be averaged."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ccl.catalogue import title_of
from ccl.errors import UserError
from ccl.report.measures import Measure
from ccl.report.seed_statistics import Estimate, estimate
from ccl.runs.run_folder import RunRecord
from ccl.section import flattened
from ccl.settings import Settings, own_defaults
from ccl.strategies import STRATEGIES, matters, strategy_title

# Where things lie and how they are saved, watched and spread over cores: not part of what was measured.
# Threads change bits, not the experiment.
_ASIDE = frozenset({"data.root", "data.download", "data.workers", "threads", "device", "trackers"})
_SEEDS = frozenset({"seed", "data.seed"})
AXES = frozenset({"strategy", "objective", "steps"}) | _SEEDS


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: a strategy with all its settings, over one or several seeds."""

    name: str
    records: tuple[RunRecord, ...]  # ascending, different seeds of the run or of its order
    # Its values of those settings it looks at that have several within one strategy, objective and number of steps
    crossed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        return self.records[0].settings.strategy

    @property
    def settings(self) -> Settings:
        """The settings of its first seed."""
        return self.records[0].settings

    @property
    def is_all_at_once(self) -> bool:
        return bool(self.records[0].protocol.get("all_at_once"))

    @property
    def step_names(self) -> list[str]:
        return self.records[0].step_names

    def values(self, measure: Measure) -> dict[tuple[int, int], float]:
        """A measure's values by seeds; runs without a number are left out."""
        found = {seeds_of(record): measure(record) for record in self.records}
        return {seeds: value for seeds, value in found.items() if not math.isnan(value)}

    def estimate(self, measure: Measure) -> Estimate | None:
        """The mean over seeds; None where no seed has the number."""
        found = list(self.values(measure).values())
        return estimate(found) if found else None

    def mean(self, measure: Measure) -> float:
        """The mean over seeds; nan where no seed has the number."""
        return estimate(list(self.values(measure).values())).mean


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
    firsts = [members[0] for members in groups.values()]
    of_firsts = [_looked_at(record, varied) for record in firsts]
    names = [_name(record, varied, others) for record, others in zip(firsts, of_firsts, strict=True)]
    crossed = _crossed(firsts, of_firsts)
    arms = []
    for name, others, members in zip(names, of_firsts, groups.values(), strict=True):
        own = f"{name} ({members[0].folder})" if names.count(name) > 1 else name
        values = {setting: value for setting, value in others.items() if setting in crossed}
        arms.append(Arm(own, tuple(sorted(members, key=seeds_of)), values))
    return arms


def _looked_at(record: RunRecord, names: Sequence[str]) -> dict[str, Any]:
    """The values of the settings that a run's strategy and objective look at."""
    settings, values = record.settings, flat(record.settings)
    seen = [name for name in names if name in values and name not in AXES]
    return {name: values[name] for name in seen if matters(name, settings.strategy, settings.objective)}


def _crossed(firsts: Sequence[RunRecord], of_firsts: Sequence[Mapping[str, Any]]) -> set[str]:
    """The settings with several values within a strategy, objective and number of steps."""
    values = defaultdict(set)
    for record, others in zip(firsts, of_firsts, strict=True):
        for name, value in others.items():
            kind = (record.settings.strategy, record.settings.objective, len(record.step_names))
            values[name, kind].add(repr(value))
    return {name for (name, _), found in values.items() if len(found) > 1}


def _name(record: RunRecord, varied: Sequence[str], others: Mapping[str, Any]) -> str:
    """The strategy's title and what is varied: its objective, number of steps and other settings."""
    parts = [strategy_title(record.settings.strategy)]
    if "objective" in varied:
        parts.append(title_of(record.settings.objective))
    if "steps" in varied and not record.protocol.get("all_at_once"):
        parts.append(f"T = {len(record.step_names)}")
    return ", ".join([*parts, *(f"{name}={as_typed(value)}" for name, value in others.items())])


def varied_settings(records: Sequence[RunRecord]) -> list[str]:
    """The settings, as `a.b`, not the same in all runs, but for a strategy's or an objective's own defaults."""
    rows = [(record.settings.objective, record.settings.strategy) for record in records]
    every = [flat(record.settings) for record in records]
    defaults = {row: flattened(own_defaults(*row)) for row in rows}

    def is_varied(name: str) -> bool:
        values = {(row, repr(own[name])) for row, own in zip(rows, every, strict=True) if name in own}
        if len({value for _, value in values}) == 1:
            return False
        others = {value for row, value in values if name not in defaults[row] or repr(defaults[row][name]) != value}
        return len(others) > 1 or len(values) > len(defaults)

    return [name for name in dict.fromkeys(chain.from_iterable(every)) if is_varied(name)]


def flat(settings: Settings) -> dict[str, Any]:
    """Every setting that may change a number, as `a.b`."""
    found = flattened(settings.model_dump())
    return {key: part for key, part in found.items() if key not in _ASIDE and not key.startswith("checkpoint.")}


def as_typed(value: Any) -> str:
    """A setting's value as one types it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def place_of(record: RunRecord) -> tuple[Any, ...]:
    """Where a run stands among others: by objective and strategy, then by what else it is set to, numbers by size."""
    settings = record.settings
    parts = re.split(r"(\d+)", repr(flat(settings)))  # words and numbers in turns
    numbers = [int(part) if part.isdigit() else part for part in parts]
    return settings.objective, list(STRATEGIES).index(settings.strategy), settings.seed, numbers


def seeds_of(record: RunRecord) -> tuple[int, int]:
    """The seeds of a run: its own, and that of the stream's order."""
    return record.settings.seed, record.settings.stream_seed


def records_of(arms: Sequence[Arm]) -> list[RunRecord]:
    """All runs, arm by arm."""
    return [record for arm in arms for record in arm.records]


def has_seeds(arms: Sequence[Arm]) -> bool:
    """Whether any arm has more than one."""
    return any(len(arm.records) > 1 for arm in arms)


def has_paper_probe(arms: Sequence[Arm]) -> bool:
    """Whether the headline of some run is by the paper's protocol, and all its other accuracies are not."""
    return any(record.has_paper_probe for record in records_of(arms))


def of_equal_steps(arms: Sequence[Arm]) -> dict[int, list[Arm]]:
    """Arms by their number of steps T; an Upper Bound also stands where its objective has none of that T."""
    counts = {len(arm.step_names) for arm in arms if not arm.is_all_at_once} or {len(arms[0].step_names)}
    at_once = {(arm.settings.objective, len(arm.step_names)) for arm in arms if arm.is_all_at_once}

    def belongs(arm: Arm, num_steps: int) -> bool:
        is_lent = arm.is_all_at_once and (arm.settings.objective, num_steps) not in at_once
        return len(arm.step_names) == num_steps or is_lent

    return {count: [arm for arm in arms if belongs(arm, count)] for count in sorted(counts)}


def partners(arm: Arm, arms: Sequence[Arm], strategy: str) -> list[Arm]:
    """The arms of another strategy that this one is measured against: same objective, crossed settings, and steps.

    What is learned all at once has no steps, so it has a partner for each number of them; other arms have one.
    """

    def fits(other: Arm) -> bool:
        one_step = arm.is_all_at_once or other.is_all_at_once
        same_steps = one_step or len(other.step_names) == len(arm.step_names)
        same_values = all(other.crossed.get(name, value) == value for name, value in arm.crossed.items())
        same_objective = other.settings.objective == arm.settings.objective
        return other is not arm and other.strategy == strategy and same_objective and same_steps and same_values

    found = [other for other in arms if fits(other)]
    return found if arm.is_all_at_once else found[:1]


def of_first_value(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The first arm that differs in crossed settings only; None for that arm itself."""
    kind = (arm.strategy, arm.settings.objective, len(arm.step_names))
    alike = [one for one in arms if (one.strategy, one.settings.objective, len(one.step_names)) == kind]
    return alike[0] if arm.crossed and alike[0] is not arm and alike[0].crossed != arm.crossed else None
