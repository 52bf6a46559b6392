"""Arguments and options that several commands share."""

from typing import Any

import typer

PRESET: Any = typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name or a YAML file.")
SET: Any = typer.Option([], "--set", "-s", metavar="KEY=VALUE", help="Change one setting; repeatable.")
SET_ALL: Any = typer.Option([], "--set", "-s", metavar="KEY=VALUE", help="Change one setting of all runs; repeatable.")
STRATEGIES: Any = typer.Option(
    "finetuning,simple_rehearsal,ccl,upper_bound",
    "--strategies",
    help="Which ones of `ccl methods`, joined by commas; or all.",
)
JOBS: Any = typer.Option(
    None, "--jobs", "-j", min=1, help="Runs at once; else one per core. On a GPU, as many as fit into its memory."
)
DATA_ROOT: Any = typer.Option(None, "--data-root", help="Where data lies; else CCL_DATA, else ./data.")
DOWNLOAD: Any = typer.Option(False, "--download", help="Fetch CIFAR from its official address if it is absent.")
ENCODER: Any = typer.Argument(metavar="ENCODER", help="The encoder folder, made by ccl learn.")
IMAGES: Any = typer.Argument(metavar="IMAGES…", help="Images, folders of them, archives, or shards:PATTERN.")
VERSION: Any = typer.Option(None, "--version", min=1, help="Which version of the encoder; else the pinned, or current.")


def with_data(assignments: list[str], data_root: str | None, download: bool) -> list[str]:
    """The assignments of --set, and those that --data-root and --download stand for."""
    root = [] if data_root is None else [f"data.root={data_root}"]
    return [*assignments, *root, *(["data.download=true"] if download else [])]
