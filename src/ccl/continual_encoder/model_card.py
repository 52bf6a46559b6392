"""A card beside an exported encoder: what it is, how to load it, what it has seen, and what nobody has measured."""

import html
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ccl.atomic_files import write_file
from ccl.continual_encoder.description import preprocessing
from ccl.continual_encoder.exporting import Exported
from ccl.continual_encoder.frozen_encoder import FrozenEncoder

_PT2 = """import torch

encoder = torch.export.load("{file}").module()
features = encoder(images)  # float32 (N, 3, {size}, {size}), any N
"""
_ONNX = """import onnxruntime

session = onnxruntime.InferenceSession("{file}")
(features,) = session.run(["features"], {{"images": images}})  # float32 (N, 3, {size}, {size}), any N
"""
_OWN = """from pathlib import Path
from ccl.continual_encoder.exporting import load_backbone

backbone = load_backbone(Path("{file}"))
features = backbone(images)  # float32 (N, 3, {size}, {size}), any N
"""
_CIFAR_STEM = """model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)  # the stem for small images
model.maxpool = torch.nn.Identity()
"""
_TORCHVISION = """import torch
from safetensors.torch import load_file
from torchvision.models import {backbone}

model = {backbone}(weights=None)
{stem}model.fc = torch.nn.Identity()
model.load_state_dict(load_file("{file}"))
features = model.eval()(images)  # float32 (N, 3, {size}, {size}), any N
"""
_TIMM = """import timm, torch
from safetensors.torch import load_file

model = timm.create_model("{backbone}", num_classes=0)
{stem}model.load_state_dict(load_file("{file}"))
features = model.eval()(images)
"""


def write_card(frozen: FrozenEncoder, exported: Exported) -> Path:
    """Write the card as `<name>.card.md` beside the export."""
    path = exported.path.with_suffix(".card.md")
    write_file(path, card(frozen, exported))
    return path


def card(frozen: FrozenEncoder, exported: Exported) -> str:
    """The card in Markdown; what the version does not say of itself is left out."""
    about = frozen.about
    steps = [step for step in about.get("steps") or [] if isinstance(step, Mapping)]
    sections = {
        "What it is": _identity(frozen, exported, steps),
        "How to load it": _loading(frozen, exported),
        "What it wants to see": _preprocessing(frozen),
        "What it has learned from": _history(steps),
        "What was measured": _measured(steps),
        "Limits": _limits(steps),
        "Settings": _fenced("json", json.dumps(about["settings"], indent=2)) if about.get("settings") else "",
    }
    body = "\n\n".join(f"## {title}\n{text.strip()}" for title, text in sections.items() if text)
    return f"# Encoder, version {frozen.version}\n\n{body}\n"


def _identity(frozen: FrozenEncoder, exported: Exported, steps: Sequence[Mapping[str, Any]]) -> str:
    options, about = frozen.architecture, frozen.about
    width = f" of width {options.width}" if options.width else ""
    facts = {
        "backbone": f"{options.backbone}{width}, {options.stem} stem" if options.backbone != "convnet" else "convnet",
        "features": f"{frozen.encoder.num_features} per image, float32",
        "file": f"{exported.path.name} ({exported.format}), {exported.checked}",
        "learned by": f"ccl, strategy {about['strategy']}" if about.get("strategy") else "ccl",
        "steps": f"{len(steps)}" if steps else "",
        "made": _when(about.get("created")),
        "version before it": about.get("parent") or None,  # the first has none
        "written with": f"ccl {version('ccl')}, torch {torch.__version__}",
    }
    lines = [f"- {name}: {_cell(value)}" for name, value in facts.items() if value not in (None, "")]
    return "An image encoder that learned without labels, from images that arrived over time.\n\n" + "\n".join(lines)


def _loading(frozen: FrozenEncoder, exported: Exported) -> str:
    options = frozen.architecture
    names = {"file": exported.path.name, "size": frozen.recipe.size, "backbone": options.backbone}
    if exported.path.suffix != ".safetensors":
        return _fenced("python", (_PT2 if exported.path.suffix == ".pt2" else _ONNX).format(**names))
    own = _fenced("python", _OWN.format(**names))
    if options.backbone == "convnet" or options.width not in (None, 64):
        return f"Other libraries have no such network; with ccl:\n{own}"
    stem = _CIFAR_STEM if options.stem == "cifar" else ""
    others = [_fenced("python", text.format(stem=stem, **names)) for text in (_TORCHVISION, _TIMM)]
    return f"With ccl:\n{own}\n\nWith torchvision:\n{others[0]}\n\nWith timm:\n{others[1]}"


def _preprocessing(frozen: FrozenEncoder) -> str:
    values = preprocessing(frozen)
    lines = ["An RGB picture of 8 bits, upright (EXIF), alpha laid on white; then, in this order:"]
    if values["resize"] is not None:
        side = values["resize"]
        lines.append(f"- its centre square, brought to {side}×{side} pixels, bilinear and anti-aliased, 8 bits;")
    share = "whole" if values["crop_fraction"] == 1 else f"of {values['crop_fraction']:g} of the shorter side"
    lines.append(f"- the centre square, {share}, brought to {values['size']}×{values['size']} likewise;")
    lines.append(f"- divided by 255, minus {values['mean']}, divided by {values['std']}, channels first.")
    return "\n".join(lines) + "\n\nThe same stands in the file's metadata; `docs/using.md` of ccl has it as a function."


def _history(steps: Sequence[Mapping[str, Any]]) -> str:
    keys = ("num_images", "num_known", "verdict")
    rows = [[step.get("step"), _when(step.get("date")), *map(step.get, keys)] for step in steps]
    return _table(["step", "date", "images", "known before", "verdict"], rows) if rows else ""


def _measured(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [[step.get("step"), _pairs(step.get("health")), _pairs(step.get("accuracy"))] for step in steps]
    return _table(["step", "health, without labels", "accuracy (%)"], rows) if any(any(row[1:]) for row in rows) else ""


def _limits(steps: Sequence[Mapping[str, Any]]) -> str:
    is_measured = any(step.get("accuracy") for step in steps)
    lines = [
        "- It learned from unlabelled images: it knows what looked alike in them, not what anything is called.",
        "- Accuracies hold for the images they were measured on." if is_measured else "- No accuracy was measured.",
        "- Not evaluated: images of other kinds or sources than it has seen, fairness between groups of people, "
        "robustness against manipulated images.",
        "- Whatever was in the images, also personal data, may have left traces in the weights.",
        "- Features of two versions can't be compared with each other: encode again after an update.",
    ]
    return "\n".join(lines)


def _when(moment: Any) -> Any:
    """Seconds since 1970 as a date; anything else as it is."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d") if isinstance(moment, int | float) else moment


def _pairs(values: Any) -> str:
    """ "rank 12.3, agreement 80 → 83": what is known of each, a list as its way from the first to the last."""
    if not isinstance(values, Mapping):
        return ""
    ways = {}
    for key, value in values.items():
        points = [_number(point) for point in (value if isinstance(value, list) else [value]) if point is not None]
        ways[key] = " → ".join(points)
    return ", ".join(f"{key} {way}" for key, way in ways.items() if way)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    """One line that neither Markdown nor HTML can misread."""
    return "" if value is None else html.escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
