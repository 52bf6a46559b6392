"""A grid of runs and its cells: which combinations of settings there are, and what the folder of each is called."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any, cast

from ccl.catalogue import title_of
from ccl.errors import RefusedError, UserError, did_you_mean
from ccl.loading import load_settings, setting_names
from ccl.settings import Settings, settings_class
from ccl.strategies import STRATEGIES, matters, strategy_title

# The settings that have an axis, and so an option, of their own.
_AXES = {"strategy": "--strategies", "objective": "--objectives", "steps": "--steps", "seed": "--seeds"}


@dataclass(frozen=True)
class Grid:
    """A preset and the axes that are varied; an axis that is empty stays as the preset says."""

    preset: str
    strategies: Sequence[str]
    seeds: Sequence[int]
    objectives: Sequence[str] = ()
    steps: Sequence[int] = ()
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    leaves_out: bool = False  # pairs of strategy and objective that don't go together; else they are refused
    fixed: Mapping[str, str] = field(default_factory=dict)  # settings of all its runs, unless --set says otherwise


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    name: str  # of its run folder below the grid's folder
    row: str  # what a table calls its row, e.g. "CCL, SimCLR, T = 10"
    seed: int  # its column
    settings: Settings


def make_cells(
    grid: Grid, assignments: Sequence[str] = (), note: Callable[[str], None] = lambda line: None
) -> list[Cell]:
    """Every combination that is a run of its own, the first seed of everything first; any mistake is reported here.

    Names don't depend on what else is in the grid. What is left out is noted, with the reason.
    """
    own = load_settings(grid.preset, assignments)
    _refuse_mistakes(grid, own, assignments)
    everywhere = [f"{key}={value}" for key, value in grid.fixed.items()]
    cells: dict[str, Cell] = {}
    left_out: dict[str, str] = {}
    cuts: Sequence[int | None] = grid.steps or [None]
    objectives = grid.objectives or [own.objective]
    for seed, num_steps, objective, name in product(grid.seeds, cuts, objectives, grid.strategies):
        strategy = STRATEGIES[name]
        if strategy.all_at_once and num_steps != cuts[0]:
            continue  # it learns the same whichever way the stream is cut
        fixed = [f"strategy={name}", f"objective={objective}", f"seed={seed}"]
        fixed += [] if num_steps is None else [f"steps={num_steps}"]
        # What a strategy ignores stays as the preset has it: one cell for all its values.
        known = setting_names(settings_class({**own.model_dump(), "strategy": name, "objective": objective}))
        keys = [key for key in sorted(grid.vary) if key in known and matters(key, name, objective)]
        for values in product(*(grid.vary[key] for key in keys)):
            varied = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            try:
                settings = load_settings(grid.preset, [*everywhere, *assignments, *fixed, *varied])
            except RefusedError as refusal:
                if not grid.leaves_out:
                    raise
                which = ", ".join([f"{strategy_title(name)} with {title_of(objective)}", *varied])
                if which not in left_out:
                    left_out[which] = str(refusal)
                    note(f"left out: {which}, as {left_out[which].partition(';')[0]}")
                continue
            row = _row(settings, keys, len(set(grid.objectives)) > 1, len(set(grid.steps)) > 1)
            cell = Cell(_folder_name(settings, own, [*keys, *grid.fixed]), row, seed, settings)
            if cells.setdefault(cell.name, cell).settings != settings:
                advice = "put them in grids of their own"
                raise UserError(f"two runs of this grid would share the folder {cell.name}; {advice}")
    if left_out and not cells:
        raise UserError(f"no strategy goes together with its objective here: {next(iter(left_out.values()))}")
    return list(cells.values())


def _refuse_mistakes(grid: Grid, own: Settings, assignments: Sequence[str]) -> None:
    """Refuse what a single cell's settings can't show: unknown axes, and a setting that is given twice."""
    models = [type(own), *(settings_class({"objective": objective}) for objective in grid.objectives)]
    known = list(dict.fromkeys(name for model in models for name in setting_names(model)))
    unknown = [name for name in grid.strategies if name not in STRATEGIES]
    mistakes = [f"unknown strategy {name!r}{did_you_mean(name, STRATEGIES)}" for name in unknown]
    for key in grid.vary:
        if key in _AXES:
            mistakes.append(f"--vary {key}: give {_AXES[key]} instead")
        elif key not in known:
            mistakes.append(f"--vary: unknown setting {key!r}{did_you_mean(key, known)}")
    given = {"strategy": True, "seed": True, "objective": bool(grid.objectives), "steps": bool(grid.steps)}
    for assignment in assignments:
        key = assignment.partition("=")[0].strip()
        if given.get(key, False):
            mistakes.append(f"--set {assignment}: a grid takes it from {_AXES[key]}")
    if mistakes:
        raise UserError(*mistakes)


def _folder_name(settings: Settings, own: Settings, keys: Sequence[str]) -> str:
    """By the values themselves, not by how they were written, so that 0.10 and 0.1 are one folder."""
    parts = [settings.strategy, settings.objective]
    parts += [] if settings.steps is None else [f"T{settings.steps}"]
    parts += [f"seed{settings.seed}"]
    parts += [f"{key}={_text(settings, key)}" for key in keys if _value(settings, key) != _value(own, key)]
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", "-".join(parts))


def _row(settings: Settings, keys: Sequence[str], with_objective: bool, with_steps: bool) -> str:
    parts = [strategy_title(settings.strategy)]
    parts += [title_of(settings.objective)] if with_objective else []
    parts += [f"T = {settings.steps}"] if with_steps and not STRATEGIES[settings.strategy].all_at_once else []
    parts += [f"{key} = {_text(settings, key)}" for key in keys]
    return ", ".join(parts)


def _value(settings: Settings, key: str) -> Any:
    """A setting's value; None where these settings have no such section."""
    return reduce(lambda value, name: getattr(value, name, None), key.split("."), cast(Any, settings))


def _text(settings: Settings, key: str) -> str:
    value = _value(settings, key)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
