"""Exports: names that torchvision and timm know, the same features in every format, nothing left of a bad file."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from networks import make_encoder
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ccl import FrozenEncoder
from ccl.continual_encoder import exporting
from ccl.continual_encoder.exporting import (
    Exported,
    card,
    export,
    load_backbone,
    plain_backbone,
    write_card,
    write_export,
)
from ccl.continual_encoder.pretrained_start import source_of
from ccl.data import ArraySource, FileSource, ImageSource, squared
from ccl.encoders import EncoderOptions, SplitBatchNorm, make_backbone
from ccl.encoders.weights import matched, read_weights
from ccl.errors import UserError

MakeFrozen = Callable[..., FrozenEncoder]
DOCS = Path(__file__).parents[3] / "docs" / "using.md"


@pytest.fixture
def images() -> ArraySource:
    return ArraySource(torch.randint(0, 256, (40, 3, 20, 24), generator=torch.manual_seed(0), dtype=torch.uint8))


@pytest.mark.parametrize("backbone", ["resnet18", "resnet34", "resnet50"])
def test_safetensors_have_torchvision_s_names_and_shapes(
    make_frozen: MakeFrozen, tmp_path: Path, backbone: str, images: ImageSource
) -> None:
    expected = json.loads((Path(__file__).parent / "torchvision_keys.json").read_text())[backbone]
    assert {name for name in expected if name.startswith("fc.")} == {"fc.weight", "fc.bias"}
    frozen = make_frozen(backbone, stem="imagenet", width=None, groups=2)
    exported = export(frozen, tmp_path / "e.safetensors", images.subset(torch.arange(2)))
    found = {name: list(tensor.shape) for name, tensor in load_file(tmp_path / "e.safetensors").items()}
    assert found == {name: shape for name, shape in expected.items() if not name.startswith("fc.")}
    assert exported == Exported(tmp_path / "e.safetensors", "safetensors", 0.0, 2)


@pytest.mark.parametrize(("backbone", "stem"), [("resnet18", "cifar"), ("resnet18", "imagenet"), ("vit_tiny", "cifar")])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt2", ".onnx"])
def test_features_are_the_original_s(
    make_frozen: MakeFrozen, tmp_path: Path, images: ImageSource, suffix: str, backbone: str, stem: str
) -> None:
    if suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason="needs the extra onnx")
    frozen = make_frozen(backbone, stem=stem, groups=4, size=32, resize=16)
    exported = export(frozen, tmp_path / f"e{suffix}", images)
    assert exported.num_images == 32
    assert exported.max_difference is not None
    largest = float(frozen.features(images).abs().max())
    print(f"{suffix} {stem}: {exported.max_difference:.2e} of {largest:.2e}")
    assert exported.max_difference <= 1e-5 * largest
    assert [path.name for path in tmp_path.iterdir()] == [f"e{suffix}"]
    assert b"site-packages" not in (content := exported.path.read_bytes())  # nor any other path of this machine
    assert b"resnet.py" not in content
    assert _description_in(exported.path) == frozen.description


def test_without_onnxruntime_it_is_said_that_nothing_was_compared(
    make_frozen: MakeFrozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: ImageSource
) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    exported = export(make_frozen(), tmp_path / "e.onnx", images)
    assert (exported.max_difference, exported.num_images) == (None, 0)
    assert "not compared" in exported.checked


def test_without_the_extra_onnx_is_refused_first(
    make_frozen: MakeFrozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"needs onnx, which can't be imported; .*pip install '\.\[onnx\]'"):
        export(make_frozen(), tmp_path / "e.onnx")


def _description_in(path: Path) -> object:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["ccl"])
    if path.suffix == ".pt2":
        found = {"ccl.json": ""}
        torch.export.load(path, extra_files=found)
        return json.loads(found["ccl.json"])
    import onnx

    model = onnx.load(path)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    return json.loads({item.key: item.value for item in model.metadata_props}["ccl"])


def test_a_convnet_comes_back_through_its_own_reader(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    frozen = make_frozen()
    assert export(frozen, tmp_path / "e.safetensors").num_images == 32  # the pictures that ccl draws
    views = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(load_backbone(tmp_path / "e.safetensors")(views), frozen.encoder.features(views))


def test_split_batch_norm_becomes_plain(make_frozen: MakeFrozen) -> None:
    frozen = make_frozen("resnet18", groups=4)
    assert any(isinstance(part, SplitBatchNorm) for part in frozen.encoder.modules())
    plain = plain_backbone(frozen)
    assert {type(part) for part in plain.modules() if isinstance(part, nn.BatchNorm2d)} == {nn.BatchNorm2d}
    assert not any(part.training for part in plain.modules())
    before = frozen.encoder.backbone.state_dict()["conv1.weight"].clone()
    plain.state_dict()["conv1.weight"].zero_()
    assert torch.equal(frozen.encoder.backbone.state_dict()["conv1.weight"], before)  # a copy, not the original


@pytest.mark.parametrize("suffix", [".safetensors", ".pt2"])
def test_a_file_that_differs_is_not_left_behind(
    make_frozen: MakeFrozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: ImageSource, suffix: str
) -> None:
    frozen, path = make_frozen("resnet18"), tmp_path / f"e{suffix}"
    path.write_text("an earlier export")

    def bent(encoder: FrozenEncoder) -> nn.Module:
        backbone = plain_backbone(encoder)
        backbone.state_dict()["bn1.running_mean"].add_(0.01)
        return backbone

    monkeypatch.setattr(exporting, "plain_backbone", bent)
    with pytest.raises(ArithmeticError, match="is not written: its features differ by up to"):
        export(frozen, path, images)
    assert path.read_text() == "an earlier export"
    assert list(tmp_path.iterdir()) == [path]


def test_what_can_t_be_exported_is_refused_first(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.safetensors, \.pt2, \.onnx"):
        export(make_frozen(), tmp_path / "e.pth")
    with pytest.raises(UserError, match="no images"):
        export(make_frozen(), tmp_path / "e.pt2", ArraySource(torch.zeros(0, 3, 4, 4, dtype=torch.uint8)))
    assert list(tmp_path.iterdir()) == []


def test_hostile_weights_are_refused(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    huge = json.dumps({"architecture": {"backbone": "convnet", "width": 10**9}})
    for about in (huge, "{", '{"architecture": {"backbone": "os.system"}}', "[]"):
        save_file({"layers.0.weight": torch.zeros(1)}, path, metadata={"ccl": about})
        with pytest.raises(UserError, match="not a backbone by ccl export"):
            load_backbone(path)
    path.write_bytes(b"\xff" * 99)
    with pytest.raises(UserError, match="not a backbone by ccl export"):
        load_backbone(path)


def reference() -> Callable[..., np.ndarray]:
    """The function that the docs give."""
    (text,) = re.findall(r"```python\n(import numpy as np\n.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Callable[..., np.ndarray]] = {}
    exec(compile(text, str(DOCS), "exec"), namespace)  # type: ignore[arg-type]
    return namespace["preprocess"]


@pytest.mark.parametrize(
    ("resize", "fraction", "size"),
    [(None, 1.0, 16), (None, 0.875, 24), (16, 1.0, 16), (20, 0.875, 16), (13, 0.9, 32), (None, 0.7, 50)],
)
def test_the_documented_preprocessing_is_ours_to_a_grey_level(
    make_frozen: MakeFrozen, labelled: Path, resize: int | None, fraction: float, size: int
) -> None:
    frozen = make_frozen(resize=resize, fraction=fraction, size=size)
    paths = sorted(labelled.rglob("*.png"))[:6]
    source: ImageSource = FileSource(paths)
    source = source if resize is None else squared(source, resize)
    ours = torch.cat(list(frozen.viewer.plain_batches(source, 8))).numpy()
    told = json.loads(json.dumps(frozen.preprocessing))
    theirs = np.stack([reference()(Image.open(path), told) for path in paths])
    assert theirs.dtype == np.float32
    grey_level = 1.01 / 255 / np.float32(told["std"])[None, :, None, None]
    assert theirs.shape == ours.shape
    assert (np.abs(theirs - ours) <= grey_level).all()
    if resize in (None, size):  # nothing is resampled beyond 8 bits
        assert np.abs(theirs - ours).max() < 1e-5


ABOUT = {
    "created": 1_700_000_000.0,
    "parent": 2,
    "strategy": "ccl",
    "settings": {"epochs": 5},
    "steps": [
        {
            "step": 1,
            "num_images": 900,
            "num_known": 0,
            "date": "2026-01-05",
            "health": {"effective_rank": [None, 12.3456], "drift": None, "agreement": [80.0, 83.125], "odd": []},
            "accuracy": None,
            "verdict": "grew | <b>well</b>\nindeed",
        },
        {
            "step": 2,
            "num_images": 800,
            "num_known": 3,
            "date": "2026-01-12",
            "health": None,
            "accuracy": {"linear": 71.25},
            "verdict": "fine",
        },
    ],
}


def test_a_card_says_what_is_known_and_how_to_load_it(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    frozen = make_frozen("resnet18", width=None, size=32, fraction=0.875, about=ABOUT)
    path = write_card(frozen, Exported(tmp_path / "encoder.safetensors", "safetensors", 0.0, 32))
    assert path == tmp_path / "encoder.safetensors.card.md"
    other = write_card(frozen, Exported(tmp_path / "encoder.pt2", "torch.export", 0.0, 32))
    assert other == tmp_path / "encoder.pt2.card.md"  # each has its own
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Encoder, version 3\n")
    assert "| 1 | 2026-01-05 | 900 | 0 | grew \\| &lt;b&gt;well&lt;/b&gt; indeed |" in text
    assert "| 1 | effective_rank 12.35, agreement 80 → 83.12 |  |\n| 2 |  | linear 71.25 |" in text
    assert "- made: 2023-11-14\n- version before it: 2" in text
    assert "at most 0.0e+00 from the original's on 32 images" in text
    assert 'timm.create_model("resnet18", num_classes=0)\nmodel.conv1 = torch.nn.Conv2d(3, 64, 3, 1' in text
    assert "the centre square, of 0.875 of the shorter side, brought to 32×32 likewise" in text
    assert '"epochs": 5' in text
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx", ".safetensors"])
def test_a_card_says_what_was_not_measured(make_frozen: MakeFrozen, suffix: str) -> None:
    text = card(make_frozen(), Exported(Path(f"e{suffix}"), "x", None, 0))
    assert "onnxruntime is missing" in text
    assert "No accuracy was measured." in text
    assert "None" not in text
    assert "torchvision" not in text  # which has no such network


def test_the_published_stem_needs_no_other_in_torchvision(make_frozen: MakeFrozen) -> None:
    text = card(make_frozen("resnet50", stem="imagenet", width=None), Exported(Path("e.safetensors"), "x", 0.0, 1))
    assert "model = resnet50(weights=None)\nmodel.fc = torch.nn.Identity()" in text
    assert make_encoder("resnet50", stem="imagenet").num_features == 2048
    assert "2048 per image" in text


def test_a_published_network_is_timm_s(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    frozen = make_frozen("resnet18", stem="imagenet", width=None, size=32, fraction=0.875)
    exported, readme = write_export(frozen, tmp_path / "hub")
    assert (exported.max_difference, readme) == (0.0, tmp_path / "hub/README.md")
    assert sorted(os.listdir(tmp_path / "hub")) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((tmp_path / "hub/config.json").read_text())
    assert (config["architecture"], config["num_classes"], config["num_features"]) == ("resnet18", 0, 512)
    images = config["pretrained_cfg"]
    assert (images["input_size"], images["crop_pct"]) == ([3, 32, 32], 0.875)
    assert (images["mean"], images["std"]) == (list(frozen.recipe.mean), list(frozen.recipe.std))
    front = readme.read_text().split("---")[1]
    assert yaml.safe_load(front)["library_name"] == "timm"
    assert "local-dir:FOLDER" in readme.read_text()
    # And back: the folder names its network, and every tensor is found.
    found = source_of(str(tmp_path / "hub"), {})
    assert (found["backbone"], found["stem"]) == ("resnet18", "imagenet")
    network = make_backbone(EncoderOptions(backbone="resnet18", stem="imagenet"))
    file = matched(read_weights(tmp_path / "hub"), network, "resnet18")
    assert (file.missing, file.unexpected) == ((), ())


def test_what_timm_does_not_have_is_not_called_timm_s(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    for name, options in {"small": {"width": 4}, "cifar": {"width": None}, "convnet": {"backbone": "convnet"}}.items():
        kinds: dict[str, Any] = {"backbone": "resnet18", **options}
        _, readme = write_export(make_frozen(**kinds), tmp_path / name)
        assert "architecture" not in json.loads((tmp_path / name / "config.json").read_text())
        assert "library_name: ccl" in readme.read_text()
        assert source_of(str(tmp_path / name), {})["backbone"] == kinds["backbone"]


def test_a_folder_with_something_in_it_is_refused(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write_export(make_frozen(), tmp_path / "mine")  # empty: welcome
    with pytest.raises(UserError, match="is not an empty folder"):
        write_export(make_frozen(), tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not an empty folder"):
        write_export(make_frozen(), tmp_path / "file")


TIMM = """
import sys, timm, torch
from safetensors.torch import save_file
from networks import make_encoder
folder, out = sys.argv[1:]
images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
save_file({"features": model(images).detach()}, out)
for name, size in (("resnet18", 64), ("vit_tiny_patch16_224", 224), ("efficientnet_lite0", 64)):
    theirs = timm.create_model(name, num_classes=0).eval()
    ours = make_encoder(f"timm:{name}", size=size).eval()
    ours.backbone.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, size, size)
    assert torch.equal(ours.features(images), theirs(images)), name
    make_encoder(f"timm:{name}", size=size, batch_norm_groups=2, freeze_stages=2).train()(torch.randn(4, 3, size, size))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_timm_itself_reads_the_folder_and_is_read(make_frozen: MakeFrozen, tmp_path: Path) -> None:
    """In an environment of its own: beside the CPU build of torch, torchvision and so timm can't be imported."""
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    wanted = ["torch==2.13.0", "torchvision==0.28.0", "timm==1.0.30", "numpy", "pydantic", "pyyaml", "filelock"]
    # Not from folders of wheels, where the CPU build may be.
    fresh = {key: value for key, value in os.environ.items() if key not in ("PIP_FIND_LINKS", "PIP_CONSTRAINT")}
    fresh["PIP_CONFIG_FILE"] = os.devnull
    installing = subprocess.run(
        [python, "-m", "pip", "install", "-q", *wanted], env=fresh, capture_output=True, text=True, check=False
    )
    if installing.returncode:
        pytest.skip(f"timm can't be installed here: {installing.stderr.strip().splitlines()[-1:]}")
    frozen = make_frozen("resnet18", stem="imagenet", width=None, size=64)
    write_export(frozen, tmp_path / "hub")
    root = Path(__file__).parents[3]
    subprocess.run(
        [python, "-c", TIMM, tmp_path / "hub", tmp_path / "out.safetensors"],
        env={**fresh, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests/support")])},
        check=True,
    )
    from safetensors.torch import load_file

    images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(
            load_file(tmp_path / "out.safetensors")["features"], frozen.encoder.features(images), atol=1e-5
        )
