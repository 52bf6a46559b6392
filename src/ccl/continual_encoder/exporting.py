"""The backbone for other programs: a file with its card, or a folder in the hub's layout, which timm reads.

What is written is read back and compared with the original before it gets its name.
"""

import importlib.metadata
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ccl.atomic_files import beside, check_target, replacing, write_file, write_folder
from ccl.catalogue import CLASS_PATH, TIMM, foreign_kind
from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.data import ImageSource, chain, load_dataset, squared
from ccl.encoders import EncoderOptions, evaluating, make_backbone
from ccl.encoders.weights import ABOUT, CONFIG, MODEL
from ccl.errors import UserError, counted, how_to_install, require
from ccl.report.page_parts import render

MOST_IMAGES = 32  # that a file is compared on
TOLERANCE = 1e-4  # of the largest feature
README = "README.md"

Reader = Callable[[Tensor], Tensor]  # images (N, 3, S, S) to features (N, F), by what stands in a file


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its features are from the encoder's own."""

    path: Path
    format: str
    max_difference: float | None  # of any feature of any image; None where nothing could run the file
    num_images: int  # compared

    @property
    def checked(self) -> str:
        """The difference in words."""
        if self.max_difference is None:
            return f"not compared with the original: onnxruntime is missing; {how_to_install('onnx')}"
        compared = counted(self.num_images, "image")
        return f"its features at most {self.max_difference:.1e} from the original's on {compared}"


def check_export_target(path: Path) -> None:
    """Refuse, before any work, a file or folder that could not be written."""
    is_hub = is_folder(path)
    if is_hub and (os.path.isfile(path) or (path.exists() and any(path.iterdir()))):
        raise UserError(f"{path} is not an empty folder; name another, or a file: {', '.join(FORMATS)}")
    check_target(path.with_suffix(".safetensors") if is_hub else path, FORMATS, "an encoder")
    if path.suffix == ".onnx":
        require(["onnx", "onnxscript"], "onnx", "an .onnx file")


def is_folder(path: Path) -> bool:
    """Whether an export to here is a folder in the hub's layout: one without a suffix, or that is there."""
    return path.suffix == "" or os.path.isdir(path)


def export(frozen: FrozenEncoder, path: str | Path, images: ImageSource | None = None) -> Exported:
    """Write the backbone in the format that the suffix says; a file that gives other features is not left behind.

    Compared are up to `MOST_IMAGES` of the images, at even distances; None: of the pictures that ccl draws itself.

    >>> exported = ccl.export(ccl.frozen("my-encoder"), "encoder.safetensors")
    >>> exported.format, exported.num_images, exported.max_difference < 1e-5
    ('safetensors', 32, True)
    """
    path = Path(path)
    check_export_target(path)
    name, write = FORMATS[path.suffix]
    views = _views(frozen, images)
    original = _original(frozen)
    largest = float(original(views).abs().max())
    with replacing(path) as unfinished:
        example = torch.zeros_like(views[:1].expand(2, -1, -1, -1))
        read = write(plain_backbone(frozen), example, frozen.description, unfinished)
        difference = None if read is None else _difference(read, original, views)
        if difference is not None and not difference <= TOLERANCE * largest:
            raise ArithmeticError(
                f"{path} is not written: its features differ by up to {difference:.2g} from the encoder's own, "
                f"which reach {largest:.2g}"
            )
    return Exported(path, name, difference, 0 if difference is None else len(views))


def plain_backbone(frozen: FrozenEncoder) -> nn.Module:
    """The backbone on the CPU with plain batch norm, in evaluation mode: the same function, no part of ours in it."""
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in frozen.encoder.backbone.state_dict().items()}
    return _filled(frozen.architecture, tensors)


def load_backbone(path: str | Path, backbone: str = "") -> nn.Module:
    """The backbone in a .safetensors file that `export` wrote, ready to evaluate; no code in the file runs.

    A network that is a class of the user's own is made only if `backbone` names it too.

    >>> encoder = ccl.frozen("my-encoder")
    >>> backbone = ccl.load_backbone(ccl.export(encoder, "encoder.safetensors").path)
    >>> backbone(torch.zeros(2, 3, 16, 16)).shape[1] == encoder.encoder.num_features
    True
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[ABOUT])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
        architecture = EncoderOptions.model_validate(about["architecture"])
        # A file does not choose what is imported.
        if foreign_kind(architecture.backbone) == CLASS_PATH and architecture.backbone != backbone:
            raise UserError(f"it is of {architecture.backbone}; give that as backbone, if you trust it")
        return _filled(architecture, tensors)
    except Exception as error:  # safetensors raises many kinds for broken files
        why = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is not a backbone by ccl export: {why}") from error


def _filled(architecture: EncoderOptions, tensors: dict[str, Tensor]) -> nn.Module:
    # No memory before names and shapes are known to fit; code of others may compute when it is made.
    with nullcontext() if foreign_kind(architecture.backbone) else torch.device("meta"):
        backbone = make_backbone(architecture)
    backbone.load_state_dict(tensors, assign=True)
    return backbone.eval().requires_grad_(False)


def _views(frozen: FrozenEncoder, images: ImageSource | None) -> Tensor:
    """Some of the images, at even distances, as the encoder sees them, (N, 3, S, S)."""
    if images is None:
        images = chain([load_dataset(name).train for name in ("symbols", "textures")])
    if not len(images):
        raise UserError("there are no images to compare the exported encoder on")
    some = images.subset(torch.linspace(0, len(images) - 1, min(MOST_IMAGES, len(images))).long())
    some = some if frozen.resize is None else squared(some, frozen.resize)
    return torch.cat(list(frozen.viewer.plain_batches(some, MOST_IMAGES))).cpu()


def _original(frozen: FrozenEncoder) -> Reader:
    """The encoder's own features in float32 on the CPU, whatever it computes in elsewhere."""
    encoder = deepcopy(frozen.encoder).cpu()
    encoder.compute_in(torch.float32)

    def read(views: Tensor) -> Tensor:
        with evaluating(encoder):
            return encoder.features(views)  # (N, F)

    return read


def _difference(read: Reader, original: Reader, views: Tensor) -> float:
    """The largest over all images at once and over the first alone: batches of any size must work."""
    differences = []
    for batch in (views, views[:1]):
        with torch.no_grad():
            found, expected = read(batch), original(batch)
        if found.shape != expected.shape:
            return float("nan")
        differences.append((found - expected).abs().max())
    return float(torch.stack(differences).max())  # nan where one is


# Each writes a backbone, given the shape of its images and the description, and reads it back.


def _safetensors(backbone: nn.Module, example: Tensor, about: dict[str, Any], path: Path) -> Reader:
    tensors = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    content = to_bytes(tensors, {"format": "pt", ABOUT: json.dumps(about)})
    path.write_bytes(content)  # save_file makes it the owner's alone
    return load_backbone(path, about["architecture"]["backbone"])


def _pt2(backbone: nn.Module, example: Tensor, about: dict[str, Any], path: Path) -> Reader:
    program = torch.export.export(backbone, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    torch.export.save(program, path, extra_files={f"{ABOUT}.json": json.dumps(about)})

    return cast(Reader, torch.export.load(path).module())


def _onnx(backbone: nn.Module, example: Tensor, about: dict[str, Any], path: Path) -> Reader | None:
    import onnx

    # Nobody here needs the packages of which the exporter speaks.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            backbone,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=["images"],
            output_names=["features"],
            external_data=False,
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # names files of this machine
    program.model.metadata_props[ABOUT] = json.dumps(about)
    program.save(path, external_data=False)

    onnx.checker.check_model(path)
    try:
        import onnxruntime
    except Exception:  # a broken installation raises anything
        return None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


Writer = Callable[[nn.Module, Tensor, dict[str, Any], Path], Reader | None]
FORMATS: dict[str, tuple[str, Writer]] = {
    ".safetensors": ("safetensors", _safetensors),
    ".pt2": ("torch.export", _pt2),
    ".onnx": ("ONNX", _onnx),
}


def write_export(frozen: FrozenEncoder, path: Path, images: ImageSource | None = None) -> tuple[Exported, Path]:
    """Write the encoder, checked against the original on the images, and its card; both paths are returned."""
    check_export_target(path)
    if not is_folder(path):
        exported = export(frozen, path, images)
        return exported, write_card(frozen, exported)
    with TemporaryDirectory() as scratch:
        exported = export(frozen, Path(scratch) / MODEL, images)
        is_known = bool(_timm_name(frozen))
        readme = render("ccl.continual_encoder", "hub_readme.md.j2", is_known=is_known, card=card(frozen, exported))
        contents = {
            CONFIG: json.dumps(hub_config(frozen), indent=2).encode(),
            MODEL: exported.path.read_bytes(),
            README: readme.encode(),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rmdir()  # it is empty: that was checked
    write_folder(path, contents, beside(path))
    return Exported(path, "hub folder", exported.max_difference, exported.num_images), path / README


def hub_config(frozen: FrozenEncoder) -> dict[str, Any]:
    """The content of config.json: timm's keys where timm has this network, and ccl's description."""
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
    """The name of this network in timm; "" where it has none with these weights."""
    options = frozen.architecture
    if foreign_kind(options.backbone) == TIMM:
        return options.backbone.partition(":")[2].partition(".")[0]
    is_published = options.backbone.startswith("resnet") and options.stem == "imagenet" and options.width in (None, 64)
    return options.backbone if is_published else ""


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
    ways = []
    for name, value in (measures or {}).items():
        if isinstance(value, Mapping):  # what stands beside the features
            ways += [f"{kind} {_in_words(scores)}" for kind, scores in value.items()]
            continue
        points = [point for point in (value if isinstance(value, list) else [value]) if point is not None]
        if points:
            way = " → ".join(f"{point:.4g}" if isinstance(point, float) else str(point) for point in points)
            ways.append(f"{name} {way}")
    return ", ".join(ways)
