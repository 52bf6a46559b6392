"""A card beside an exported encoder: what it is, how to load it, what it has seen, and what nobody has measured."""

import importlib.metadata
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ccl.atomic_files import write_file
from ccl.catalogue import foreign_kind
from ccl.continual_encoder.exporting import Exported
from ccl.continual_encoder.frozen import FrozenEncoder
from ccl.report.page_parts import render


def write_card(frozen: FrozenEncoder, exported: Exported) -> Path:
    """Write the card as `<file>.card.md` beside the export, so that each export has its own.

    >>> encoder = ccl.frozen("my-encoder")
    >>> ccl.write_card(encoder, ccl.export(encoder, "encoder.safetensors")).name
    'encoder.safetensors.card.md'
    """
    path = exported.path.with_name(f"{exported.path.name}.card.md")
    write_file(path, card(frozen, exported))
    return path


def card(frozen: FrozenEncoder, exported: Exported) -> str:
    """The card in Markdown."""
    options, about = frozen.architecture, frozen.about
    is_resnet = options.backbone.startswith("resnet")
    width = f" of width {options.width}" if options.width else ""
    text = render(
        "ccl.continual_encoder",
        "model_card.md.j2",
        about=about,
        version=frozen.version,
        exported=exported,
        backbone=options.backbone,
        network=f"{options.backbone}{width}, {options.stem} stem" if is_resnet else options.backbone,
        weights=str(about.get("weights", "")).removeprefix("weights: "),
        is_foreign=foreign_kind(options.backbone) is not None,
        is_published=is_resnet and options.width in (None, 64),
        stem=options.stem,
        num_features=frozen.encoder.num_features,
        preprocessing=frozen.preprocessing,
        made=time.strftime("%Y-%m-%d", time.gmtime(about["created"])),
        written_with=f"ccl {importlib.metadata.version('ccl')}, torch {torch.__version__}",
        measured=[(step["step"], _in_words(step["health"]), _in_words(step["accuracy"])) for step in about["steps"]],
        settings=json.dumps(about["settings"], indent=2),
    )
    return f"{text}\n"


def _in_words(measures: Mapping[str, Any] | None) -> str:
    """ "rank 12.3, agreement 80 → 83": what is known of each, a pair as its way from before to after."""
    ways = {}
    plain = {key: value for key, value in (measures or {}).items() if not isinstance(value, Mapping)}
    for kind, values in (measures or {}).get("beside", {}).items():
        plain |= {f"{kind} {key}": value for key, value in values.items()}
    for key, value in plain.items():
        points = [point for point in (value if isinstance(value, list) else [value]) if point is not None]
        ways[key] = " → ".join(f"{point:.4g}" if isinstance(point, float) else str(point) for point in points)
    return ", ".join(f"{key} {way}" for key, way in ways.items() if way)
