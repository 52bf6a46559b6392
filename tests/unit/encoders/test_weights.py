"""Weights of strangers: every key accounted for, nothing run, what does not fit refused in one line."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ccl.encoders import ResNet
from ccl.encoders.weights import matched, read_config, read_weights
from ccl.errors import UserError


def weights_of(network: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: tensor.clone() for name, tensor in network.state_dict().items()}


def saved(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "prefix", ["", "module.", "backbone.", "encoder.", "base_encoder.", "model.", "module.encoder_q.", "a.b.c."]
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_names_are_matched_whatever_stands_before_them(tmp_path: Path, prefix: str, suffix: str) -> None:
    torch.manual_seed(0)
    source, network = networks.SmallCNN(), networks.SmallCNN()
    path = saved(tmp_path, f"weights{suffix}", weights_of(source, prefix))
    found = matched(read_weights(path), network, "small")
    network.load_state_dict(found.tensors, strict=False)
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), network.parameters(), strict=True))
    assert found.line == f"weights: loaded 10 of 10 tensors from {path}; missing 0, unexpected 0"


def test_every_key_is_accounted_for(tmp_path: Path) -> None:
    theirs = weights_of(ResNet(18, "imagenet", width=4), "module.encoder_q.")
    theirs |= weights_of(ResNet(18, "imagenet", width=4), "module.encoder_k.")
    theirs |= {"module.encoder_q.fc.weight": torch.zeros(10, 32), "module.queue": torch.zeros(4, 4)}
    for copy in "qk":
        del theirs[f"module.encoder_{copy}.layer4.1.conv2.weight"]
    path = saved(tmp_path, "moco.pt", {"epoch": 200, "state_dict": theirs, "optimizer": {"state": {0: {"lr": 1.0}}}})
    network = ResNet(18, "imagenet", width=4)
    found = matched(read_weights(path), network, "resnet18")
    wanted = [name for name in network.state_dict() if not name.endswith("num_batches_tracked")]
    assert set(found.tensors) | set(found.missing) == set(wanted)
    assert found.missing == ("layer4.1.conv2.weight",)
    assert torch.equal(found.tensors["conv1.weight"], theirs["module.encoder_q.conv1.weight"])
    there = {name for name in theirs if not name.endswith("num_batches_tracked")}
    assert len(found.unexpected) == len(there) - len(found.tensors)
    assert f"loaded {len(wanted) - 1} of {len(wanted)} tensors" in found.line
    assert f"missing 1 (layer4.1.conv2.weight), unexpected {len(found.unexpected)} (state_dict.mod" in found.line


def test_a_network_inside_another_reads_what_the_inner_one_has(tmp_path: Path) -> None:
    source, network = networks.SmallCNN(), networks.Wrapped()
    found = matched(read_weights(saved(tmp_path, "w.safetensors", weights_of(source))), network, "wrapped")
    assert torch.equal(found.tensors["network.stem.weight"], source.stem.weight)
    assert not found.missing


def test_a_folder_in_the_hub_s_layout(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "resnet18", "pretrained_cfg": {"mean": [1, 2, 3]}})
    )
    with pytest.raises(UserError, match=r"the folder has no model.safetensors"):
        read_weights(tmp_path)
    saved(tmp_path, "model.safetensors", weights_of(networks.SmallCNN()))
    file = read_weights(tmp_path)
    assert len(file.sha256) == 64
    assert read_config(tmp_path)["pretrained_cfg"] == {"mean": [1, 2, 3]}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"its config.json can't be read"):
        read_config(tmp_path)


class _Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch canary",)


def _bad_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Each bad file, by its name: what is in it is written here, and what must be said of it."""
    good = weights_of(networks.SmallCNN())
    whole = saved(folder, "whole.safetensors", good).read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "huge.safetensors").write_bytes((10 * 2**30).to_bytes(8, "little") + whole[8:])
    (folder / "html.safetensors").write_text("<html>404</html>")
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "code.pt").write_bytes(pickle.dumps({"weights": _Code()}))
    pt = saved(folder, "whole.pt", good).read_bytes()
    (folder / "cut.pt").write_bytes(pt[: len(pt) // 2])
    saved(folder, "nothing.pt", {"epoch": 3})
    saved(folder, "other.pt", weights_of(networks.SmallViT()))
    saved(folder, "wide.pt", weights_of(networks.SmallCNN(width=5)))
    saved(folder, "nan.pt", good | {"bn.weight": torch.full((4,), float("nan"))})
    (folder / "weights.txt").write_text("1 2 3")
    return {
        "cut.safetensors": ("read", "it is not a safetensors file"),
        "huge.safetensors": ("read", "its header would have 10,737,418,240 bytes"),
        "html.safetensors": ("read", "it is not a safetensors file"),
        "empty.safetensors": ("read", "it is not a safetensors file"),
        "code.pt": ("read", "code in it is never run"),
        "cut.pt": ("read", "it can't be read as weights alone"),
        "nothing.pt": ("read", "there are no tensors in it"),
        "weights.txt": ("read", "weights are read from .safetensors"),
        "absent.pt": ("read", "there is no such file"),
        "other.pt": ("match", "is not of small: of its 10 tensors 0 are in it; the network has stem.weight"),
        "wide.pt": (
            "match",
            r"is not of small: stem.weight has the shape \(5, 3, 3, 3\), and the network's \(4, 3, 3, 3\)",
        ),
        "nan.pt": ("match", "bn.weight has values that are not finite"),
    }


def test_wrong_files_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (_, says) in _bad_files(tmp_path).items():
        with pytest.raises(UserError, match=says) as refusal:
            matched(read_weights(tmp_path / name), networks.SmallCNN(), "small")
        assert "\n" not in str(refusal.value), name
        assert name in str(refusal.value)
    assert not (tmp_path / "canary").exists()
