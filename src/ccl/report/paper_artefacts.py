"""The paper's tables and figures as grids of runs, at the paper's scale and at one for two CPU cores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccl.errors import UserError, did_you_mean
from ccl.report import published_results as published
from ccl.report.tables import Table
from ccl.runs.grid_cells import Grid

FOUR = ("finetuning", "simple_rehearsal", "ccl", "upper_bound")
FIVE_ROWS = ("finetuning", "simple_rehearsal", "variance_rehearsal", "variance_distillation", "ccl")
THREE = ("moco_v2", "simclr", "insdisc")
SIX_TRIALS = (0, 1, 2, 3, 4, 5)  # Paper: mean ± std of 6 on CIFAR-100, one trial on ImageNet
ONE_TRIAL = (0,)
_QUEUE_SIZES = {"extra_sample_queue.size": ("32", "64", "128", "256", "512")}
_SMALL_QUEUE_SIZES = {"extra_sample_queue.size": ("8", "16", "32", "64", "128")}  # a quarter, as the memory is
_CLUSTERS = {"memory.clusters": ("2", "5", "8", "10", "12", "15", "20", "30")}


@dataclass(frozen=True)
class Artefact:
    """One table or figure: what it shows, the paper's own figures, and its grids."""

    title: str
    published: Table
    paper: tuple[Grid, ...]  # at the paper's scale, one for each dataset
    class_steps: Sequence[int] = (10,)  # of the small class stream; the domain stream has as many steps as sets
    has_domain_stream: bool = True
    small_vary: Mapping[str, Sequence[str]] | None = None  # values of the small scale where they are others
    # How accuracy is measured at the paper's scale, beside the paper's figures: by its own probe
    paper_probe: Mapping[str, str] = field(default_factory=lambda: {"probe.paper_protocol": "true"})

    def grids(self, scale: str) -> dict[str, Grid]:
        """By dataset at the paper's scale, by kind of stream at the small one, which has the same axes."""
        if scale == "paper":
            return {grid.preset: replace(grid, fixed=self.paper_probe) for grid in self.paper}
        first = replace(self.paper[0], vary=self.small_vary or self.paper[0].vary)
        domain = replace(first, preset="domains-mini", seeds=(0, 1, 2, 3, 4), steps=())
        of_class = replace(first, preset="cifar100-mini", seeds=(0, 1, 2), steps=self.class_steps)
        return {"domain": domain, "class": of_class} if self.has_domain_stream else {"class": of_class}


ARTEFACTS: dict[str, Artefact] = {
    "table1": Artefact(
        "Table 1: four strategies",
        published.TABLE_1,
        (
            Grid("cifar100", FOUR, SIX_TRIALS, steps=(5, 10)),
            Grid("imagenet-sub", FOUR, ONE_TRIAL, steps=(5, 10)),
            Grid("imagenet-full", FOUR, ONE_TRIAL, steps=(10,)),
        ),
        class_steps=(5, 10),
    ),
    "ablation": Artefact(
        "Ablation: the parts of the method, one after the other",
        published.ABLATION,
        (Grid("imagenet-sub", FIVE_ROWS, ONE_TRIAL, steps=(10,)),),
    ),
    "queue-size": Artefact(
        "Accuracy against the size of the extra sample queue",
        published.QUEUE_SIZE,
        (Grid("cifar100", ("ccl",), SIX_TRIALS, steps=(5,), vary=_QUEUE_SIZES),),
        small_vary=_SMALL_QUEUE_SIZES,
    ),
    "clusters": Artefact(
        "Accuracy against the number of clusters K",
        published.CLUSTERS,
        (Grid("imagenet-sub", ("ccl",), ONE_TRIAL, steps=(10,), vary=_CLUSTERS),),
    ),
    "objectives": Artefact(
        "Three objectives with and without CCL",
        published.OBJECTIVES,
        (Grid("cifar100", ("finetuning", "ccl"), SIX_TRIALS, objectives=THREE, steps=(5,)),),
    ),
    "figure1a": Artefact(
        "Figure 1a: several objectives, streamed and all at once",
        published.FIGURE_1A,
        (Grid("cifar100", ("finetuning", "upper_bound"), SIX_TRIALS, objectives=THREE, steps=(5,)),),
    ),
    "figure1b": Artefact(
        "Figure 1b: accuracy against the number of steps",
        published.FIGURE_1B,
        (Grid("cifar100", ("finetuning", "upper_bound"), SIX_TRIALS, steps=(2, 4, 5, 10)),),
        class_steps=(2, 4, 5, 10),
        has_domain_stream=False,
    ),
    "transfer": Artefact(
        "Forgetting and Forward Transfer",
        published.TRANSFER,
        (Grid("imagenet-sub", ("finetuning", "simple_rehearsal", "ccl"), ONE_TRIAL, steps=(5, 10)),),
        class_steps=(5, 10),
        paper_probe={"probe.matrix": "paper"},  # Forgetting and Forward Transfer are of every step's own probe
    ),
}


def choose(
    name: str, scale: str, which: str | None = None, seeds: Sequence[int] = (), steps: Sequence[int] = ()
) -> tuple[Artefact, str, Grid]:
    """An artefact and its grid, with other seeds and numbers of steps where some are given.

    `which` is a kind of stream (mini) or a dataset (paper), None the first there is.
    """
    if name not in ARTEFACTS:
        raise UserError(f"unknown artefact {name!r}{did_you_mean(name, ARTEFACTS)}; known: {', '.join(ARTEFACTS)}")
    grids = ARTEFACTS[name].grids(scale)
    which = which or next(iter(grids))
    if which not in grids:
        option = "--stream" if scale == "mini" else "--dataset"
        raise UserError(f"{name} at scale {scale} has no {option} {which}; choose from {', '.join(grids)}")
    grid = grids[which]
    return ARTEFACTS[name], which, replace(grid, seeds=seeds or grid.seeds, steps=steps or grid.steps)
