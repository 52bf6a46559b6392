"""Arguments and options that several commands share."""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccl.errors import UserError, did_you_mean, printable

if TYPE_CHECKING:
    from ccl.runs.grid import Launcher

PRESET: Any = typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name or a YAML file.")
SET: Any = typer.Option([], "--set", "-s", metavar="KEY=VALUE", help="Change one setting; repeatable.")
SET_ALL: Any = typer.Option([], "--set", "-s", metavar="KEY=VALUE", help="Change one setting of all runs; repeatable.")
STRATEGIES: Any = typer.Option(
    "finetuning,simple_rehearsal,ccl,multi_view_rehearsal,upper_bound",
    "--strategies",
    help="Which ones of `ccl methods`, joined by commas; or all.",
)
JOBS: Any = typer.Option(
    None, "--jobs", "-j", min=1, help="Runs at once; else one per core. On a GPU, as many as fit into its memory."
)
ON: Any = typer.Option("local", "--on", help="local (child processes) or slurm (a job of the cluster for each run).")
SLURM: Any = typer.Option(
    None,
    "--slurm",
    metavar="OPTIONS",
    help="With --on slurm: options of sbatch for each job, such as '--partition=gpu --gpus=1 --time=8:00:00'.",
)
NPROC_PER_NODE: Any = typer.Option(
    None, "--nproc-per-node", min=1, help="With --on slurm: processes of each run on each node of its job, by torchrun."
)
DETACH: Any = typer.Option(
    False, "--detach", help="With --on slurm: submit and return; the same command without it follows the jobs."
)
DATA_ROOT: Any = typer.Option(None, "--data-root", help="Where data lies; else CCL_DATA, else ./data.")
DOWNLOAD: Any = typer.Option(False, "--download", help="Fetch CIFAR from its official address if it is absent.")
ENCODER: Any = typer.Argument(metavar="ENCODER", help="The encoder folder, made by ccl learn.")
IMAGES: Any = typer.Argument(metavar="IMAGES…", help="Images, folders of them, archives, or shards:PATTERN.")
MAX_BAD: Any = typer.Option(
    5.0, "--max-bad", min=0.0, max=100.0, metavar="PERCENT", help="Refuse if more of the files are not usable images."
)


def _trust(wanted: bool) -> None:
    if wanted:
        from ccl.trusted_classes import trust

        trust(os.sep)  # all that this command reads


TRUST: Any = typer.Option(
    False, "--trust", callback=_trust, help="Import the classes of their own that a folder's settings name; remembered."
)
VERSION: Any = typer.Option(None, "--version", min=0, help="Which version of the encoder; else the pinned, or current.")


def echo(text: str, *, err: bool = False) -> None:
    """Print one line; what came from outside is shown, never obeyed."""
    typer.echo(printable(text), err=err)


def with_data(assignments: list[str], data_root: str | None, download: bool) -> list[str]:
    """The assignments of --set, and those that --data-root and --download stand for."""
    root = [] if data_root is None else [f"data.root={data_root}"]
    return [*assignments, *root, *(["data.download=true"] if download else [])]


@dataclass(frozen=True)
class Place:
    """Where a grid's runs are started, from the options; mistakes are reported before torch is imported."""

    on: str = "local"
    jobs: int | None = None
    slurm: str | None = None
    nproc_per_node: int | None = None
    detach: bool = False

    def __post_init__(self) -> None:
        if self.on not in ("local", "slurm"):
            raise UserError(f"--on {self.on!r}{did_you_mean(self.on, ('local', 'slurm'))}")
        given = {"--slurm": self.slurm, "--nproc-per-node": self.nproc_per_node, "--detach": self.detach or None}
        misplaced = [name for name, value in given.items() if value is not None]
        if self.on == "local" and misplaced:
            raise UserError(f"{misplaced[0]} belongs to --on slurm; add that, or leave {misplaced[0]} out")
        if self.on == "slurm":
            sbatch_options(self.slurm)

    def launcher(self, out: Path) -> "Launcher":
        """The launcher of the runs in this folder."""
        from ccl.runs.jobs import LocalJobs
        from ccl.runs.slurm import SlurmJobs

        if self.on == "local":
            return LocalJobs()
        at_once = self.jobs if self.detach else None  # else the grid itself submits no more than that
        options = sbatch_options(self.slurm)
        return SlurmJobs(out, options, self.nproc_per_node, is_detached=self.detach, at_once=at_once)


# What `ccl.runs.slurm` sets, and what would keep sbatch from submitting.
_OURS = re.compile(
    "--(array|output|error|input|job-name|parsable|wrap|wait|test-only|open-mode)(=.*)?|-[aoeiJW].*", re.DOTALL
)
_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")  # what `ccl.runs.slurm` and a job call


def sbatch_options(text: str | None) -> list[str]:
    """The options one by one; refuses those that ccl sets itself, and a machine without Slurm."""
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UserError(f"--slurm {text!r}: {str(error).lower()}") from None
    for word in words:
        if _OURS.fullmatch(word):
            raise UserError(f"--slurm: ccl sets {word.partition('=')[0]} itself; leave it out")
    for name in _PROGRAMS:
        if shutil.which(name) is None:
            raise UserError(f"--on slurm: there is no {name} on this machine; start it on a login node of the cluster")
    return words
