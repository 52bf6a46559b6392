"""The paper's tables and figures as grids of runs, at the paper's scale and at one for two CPU cores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ccl.errors import UserError, did_you_mean
from ccl.report import published
from ccl.report.tables import Table
from ccl.runs.cells import Cell, make_cells

Scale = Literal["mini", "paper"]
Stream = Literal["domain", "class"]

FOUR = ("finetuning", "simple_rehearsal", "ccl", "upper_bound")
FIVE_ROWS = ("finetuning", "simple_rehearsal", "variance_rehearsal", "variance_distillation", "ccl")
THREE = ("moco_v2", "simclr", "insdisc")
SIX_TRIALS = (0, 1, 2, 3, 4, 5)  # Paper: mean ± std of 6 on CIFAR-100, one trial on ImageNet
ONE_TRIAL = (0,)


@dataclass(frozen=True)
class Grid:
    """A preset and the axes that are varied; what is empty stays as the preset says."""

    preset: str
    strategies: Sequence[str]
    seeds: Sequence[int]
    objectives: Sequence[str] = ()
    steps: Sequence[int] = ()
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cells(self, assignments: Sequence[str]) -> list[Cell]:
        """The runs of this grid, each setting checked."""
        return make_cells(
            self.preset,
            strategies=self.strategies,
            objectives=self.objectives,
            steps=self.steps,
            seeds=self.seeds,
            vary=self.vary,
            assignments=assignments,
        )


@dataclass(frozen=True)
class Artefact:
    """One table or figure: what it shows, the paper's own figures, and its grids at each scale."""

    title: str
    published: Table
    paper: Mapping[str, Grid]  # by dataset
    mini: Mapping[Stream, Grid]  # by kind of stream


_PRESETS = {"domain": "domains-mini", "class": "cifar100-mini"}
_SEEDS = {"domain": (0, 1, 2, 3, 4), "class": (0, 1, 2)}


def _mini(grid: Grid, *streams: Stream, class_steps: Sequence[int] = ()) -> dict[Stream, Grid]:
    """The same axes on the small streams; the domain stream has as many steps as sets."""
    found: dict[Stream, Grid] = {}
    for stream in streams:
        steps = class_steps if stream == "class" else ()
        found[stream] = replace(grid, preset=_PRESETS[stream], seeds=_SEEDS[stream], steps=steps)
    return found


_TABLE_1 = Grid("cifar100", FOUR, SIX_TRIALS, steps=(5, 10))
_ABLATION = Grid("imagenet-sub", FIVE_ROWS, ONE_TRIAL, steps=(10,))
_SIZES = Grid(
    "cifar100", ("ccl",), SIX_TRIALS, steps=(5,), vary={"extra_sample_queue.size": ["32", "64", "128", "256", "512"]}
)
_CLUSTERS = Grid(
    "imagenet-sub",
    ("ccl",),
    ONE_TRIAL,
    steps=(10,),
    vary={"memory.clusters": ["2", "5", "8", "10", "12", "15", "20", "30"]},
)
_OBJECTIVES = Grid("cifar100", ("finetuning", "ccl"), SIX_TRIALS, objectives=THREE, steps=(5,))
_FIGURE_1A = Grid("cifar100", ("finetuning", "upper_bound"), SIX_TRIALS, objectives=THREE, steps=(5,))
_FIGURE_1B = Grid("cifar100", ("finetuning", "upper_bound"), SIX_TRIALS, steps=(2, 4, 5, 10))
_TRANSFER = Grid("imagenet-sub", ("finetuning", "simple_rehearsal", "ccl"), ONE_TRIAL, steps=(5, 10))

ARTEFACTS: dict[str, Artefact] = {
    "table1": Artefact(
        "Table 1: four strategies",
        published.TABLE_1,
        {
            "cifar100": _TABLE_1,
            "imagenet-sub": replace(_TABLE_1, preset="imagenet-sub", seeds=ONE_TRIAL),
            "imagenet-full": replace(_TABLE_1, preset="imagenet-full", seeds=ONE_TRIAL, steps=(10,)),
        },
        _mini(_TABLE_1, "domain", "class", class_steps=(5, 10)),
    ),
    "ablation": Artefact(
        "Ablation: the parts of the method, one after the other",
        published.ABLATION,
        {"imagenet-sub": _ABLATION},
        _mini(_ABLATION, "domain", "class", class_steps=(10,)),
    ),
    "queue-size": Artefact(
        "Accuracy against the size of the extra sample queue",
        published.QUEUE_SIZE,
        {"cifar100": _SIZES},
        _mini(_SIZES, "domain", "class", class_steps=(10,)),
    ),
    "clusters": Artefact(
        "Accuracy against the number of clusters K",
        published.CLUSTERS,
        {"imagenet-sub": _CLUSTERS},
        _mini(_CLUSTERS, "domain", "class", class_steps=(10,)),
    ),
    "objectives": Artefact(
        "Three objectives with and without CCL",
        published.OBJECTIVES,
        {"cifar100": _OBJECTIVES},
        _mini(_OBJECTIVES, "domain", "class", class_steps=(10,)),
    ),
    "figure1a": Artefact(
        "Figure 1a: several objectives, streamed and all at once",
        published.FIGURE_1A,
        {"cifar100": _FIGURE_1A},
        _mini(_FIGURE_1A, "domain", "class", class_steps=(10,)),
    ),
    "figure1b": Artefact(
        "Figure 1b: accuracy against the number of steps",
        published.FIGURE_1B,
        {"cifar100": _FIGURE_1B},
        _mini(_FIGURE_1B, "class", class_steps=(2, 4, 5, 10)),
    ),
    "transfer": Artefact(
        "Forgetting and Forward Transfer",
        published.TRANSFER,
        {"imagenet-sub": _TRANSFER},
        _mini(_TRANSFER, "domain", "class", class_steps=(5, 10)),
    ),
}


def find(name: str) -> Artefact:
    """An artefact by its name on the command line."""
    if name not in ARTEFACTS:
        raise UserError(f"unknown artefact {name!r}{did_you_mean(name, ARTEFACTS)}; known: {', '.join(ARTEFACTS)}")
    return ARTEFACTS[name]


def choose(name: str, scale: Scale, which: str | None) -> tuple[str, Grid]:
    """The grid of an artefact: `which` is a kind of stream (mini) or a dataset (paper), None the first there is."""
    artefact = find(name)
    grids: Mapping[str, Grid] = {str(key): grid for key, grid in getattr(artefact, scale).items()}
    which = which or next(iter(grids))
    if which not in grids:
        option = "--stream" if scale == "mini" else "--dataset"
        raise UserError(f"{name} at scale {scale} has no {option} {which}; choose from {', '.join(grids)}")
    return which, grids[which]


def with_axes(grid: Grid, seeds: Sequence[int] | None, steps: Sequence[int] | None) -> Grid:
    """The grid with other seeds or numbers of steps, where the user names them."""
    return replace(grid, seeds=seeds or grid.seeds, steps=steps or grid.steps)
