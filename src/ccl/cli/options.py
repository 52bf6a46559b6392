"""Arguments and options that several commands share."""

from typing import Any

import typer

ENCODER: Any = typer.Argument(metavar="ENCODER", help="The encoder folder, made by ccl learn.")
IMAGES: Any = typer.Argument(metavar="IMAGES…", help="Images, folders of them, or archives.")
VERSION: Any = typer.Option(None, "--version", min=1, help="Which version of the encoder; else the pinned, or current.")
