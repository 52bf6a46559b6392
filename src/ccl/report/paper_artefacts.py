"""The paper's tables and figures as grids of runs, at the paper's scale and at one for two CPU cores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import yaml

from ccl.errors import UserError, did_you_mean
from ccl.report.tables import Table
from ccl.runs.grid_cells import Grid


@dataclass(frozen=True)
class Artefact:
    """One table or figure: what it shows, the paper's own figures, and its grids by scale and then by data."""

    title: str
    published: Table
    grids: dict[str, dict[str, Grid]]  # paper: by dataset; mini: by kind of stream


def _artefact(about: dict[str, Any]) -> Artefact:
    whole = Grid("", about["strategies"], (), about.get("objectives", ()), vary=about.get("vary", {}))
    probe = about.get("probe", {"probe.paper_protocol": "true"})  # at the paper's scale accuracy is by its own probe
    paper = {grid["preset"]: replace(whole, fixed=probe, **grid) for grid in about["paper"]}
    small = replace(whole, vary=about.get("small_vary", whole.vary))
    mini = {
        "domain": replace(small, preset="domains-mini", seeds=range(5)),  # as many steps as sets
        "class": replace(small, preset="cifar100-mini", seeds=range(3), steps=about.get("class_steps", [10])),
    }
    theirs = about["published"]
    note = f"The paper's own scale: {theirs['scale']}. Our scale is what the protocol of our tables says."
    rows = tuple(tuple(row) for row in theirs["rows"])
    published = Table(f"The paper: {theirs['title']}", tuple(theirs["columns"]), rows, note)
    grids = {"paper": paper, "mini": {kind: mini[kind] for kind in about.get("streams", mini)}}
    return Artefact(about["title"], published, grids)


_FILE = (resources.files("ccl.report") / "paper_artefacts.yaml").read_text(encoding="utf-8")
ARTEFACTS = {name: _artefact(about) for name, about in yaml.safe_load(_FILE)["artefacts"].items()}


def choose(
    name: str, scale: str, which: str | None = None, seeds: Sequence[int] = (), steps: Sequence[int] = ()
) -> tuple[Artefact, str, Grid]:
    """An artefact and its grid of a kind of stream (mini) or dataset (paper), with the seeds and steps given."""
    if name not in ARTEFACTS:
        raise UserError(f"unknown artefact {name!r}{did_you_mean(name, ARTEFACTS)}; known: {', '.join(ARTEFACTS)}")
    grids = ARTEFACTS[name].grids[scale]
    which = which or next(iter(grids))
    if which not in grids:
        option = "--stream" if scale == "mini" else "--dataset"
        raise UserError(f"{name} at scale {scale} has no {option} {which}; choose from {', '.join(grids)}")
    grid = grids[which]
    return ARTEFACTS[name], which, replace(grid, seeds=seeds or grid.seeds, steps=steps or grid.steps)
