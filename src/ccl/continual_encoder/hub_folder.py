"""An export as a file with its card, or as a folder in the hub's layout, which timm reads as `local-dir:FOLDER`."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ccl.atomic_files import write_folder
from ccl.catalogue import TIMM, foreign_kind
from ccl.continual_encoder.exporting import Exported, check_export_target, export, is_folder
from ccl.continual_encoder.frozen import FrozenEncoder
from ccl.continual_encoder.model_card import card, write_card
from ccl.data import ImageSource
from ccl.encoders.weights import ABOUT, CONFIG, MODEL

README = "README.md"


def write_export(frozen: FrozenEncoder, path: Path, images: ImageSource | None = None) -> tuple[Exported, Path]:
    """Write the encoder, checked against the original on the images, and its card; both paths are returned."""
    if not is_folder(path):
        exported = export(frozen, path, images)
        return exported, write_card(frozen, exported)
    check_export_target(path)
    with TemporaryDirectory() as scratch:
        exported = export(frozen, Path(scratch) / MODEL, images)
        contents = {
            CONFIG: json.dumps(hub_config(frozen), indent=2).encode(),
            MODEL: exported.path.read_bytes(),
            README: _readme(frozen, exported).encode(),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rmdir()  # it is empty: that was checked
    write_folder(path, contents, path.with_name(f".{path.name}.{os.getpid()}.part"))
    return Exported(path, "hub folder", exported.max_difference, exported.num_images), path / README


def hub_config(frozen: FrozenEncoder) -> dict[str, Any]:
    """What config.json says: timm's keys where timm has this network, and ccl's description always."""
    preprocessing = frozen.preprocessing
    images = {
        "input_size": [3, preprocessing["size"], preprocessing["size"]],
        "interpolation": "bilinear",
        "crop_pct": preprocessing["crop_fraction"],
        "crop_mode": "center",
        "mean": preprocessing["mean"],
        "std": preprocessing["std"],
        "num_classes": 0,
    }
    named = _timm_name(frozen)
    if named:
        own = getattr(frozen.encoder.backbone, "pretrained_cfg", None) or {"first_conv": "conv1", "classifier": "fc"}
        images |= {key: own.get(key) for key in ("first_conv", "classifier")}
    network = {"architecture": named, "model_args": dict(frozen.architecture.options)} if named else {}
    about = {"num_classes": 0, "num_features": frozen.encoder.num_features, "pretrained_cfg": images}
    return {**network, **about, ABOUT: frozen.description}


def _timm_name(frozen: FrozenEncoder) -> str:
    """What timm calls this network; "" where it has none with these weights."""
    options = frozen.architecture
    if foreign_kind(options.backbone) == TIMM:
        return options.backbone.partition(":")[2].partition(".")[0]
    is_published = options.backbone.startswith("resnet") and options.stem == "imagenet" and options.width in (None, 64)
    return options.backbone if is_published else ""


def _readme(frozen: FrozenEncoder, exported: Exported) -> str:
    """The card below the front matter that hubs read; it names no licence, which only the weights' owner can."""
    is_known = bool(_timm_name(frozen))
    lines = [
        "---",
        f"library_name: {'timm' if is_known else 'ccl'}",
        "pipeline_tag: image-feature-extraction",
        "tags:",
        "- image-feature-extraction",
        "- self-supervised",
        "- continual-learning",
        "---",
        "",
    ]
    if is_known:
        lines += [
            "```python",
            "import timm",
            "",
            'model = timm.create_model("local-dir:FOLDER", pretrained=True)  # the folder of this file',
            "```",
            "",
        ]
    return "\n".join(lines) + "\n" + card(frozen, exported)
