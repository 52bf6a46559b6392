"""Exports as a folder in the hub's layout: what others read, and what reads it again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ccl.continual_encoder import FrozenEncoder
from ccl.continual_encoder.exporting import write_export
from ccl.continual_encoder.pretrained_start import source_of
from ccl.encoders import make_backbone
from ccl.encoders.weights import matched, read_weights
from ccl.errors import UserError

MakeFrozen = Callable[..., FrozenEncoder]


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
    network = make_backbone("resnet18", "imagenet")
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
    source = Path(__file__).parents[3] / "src"
    subprocess.run(
        [python, "-c", TIMM, tmp_path / "hub", tmp_path / "out.safetensors"],
        env={**fresh, "PYTHONPATH": str(source)},
        check=True,
    )
    from safetensors.torch import load_file

    images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(
            load_file(tmp_path / "out.safetensors")["features"], frozen.encoder.features(images), atol=1e-5
        )
