"""Encoder folders that start from weights: version 0 is used like any other, and what it knew is kept."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from drops import TINY, Deliver, fingerprint
from safetensors.torch import load_file

from ccl import ContinualEncoder
from ccl.continual_encoder.choose_settings import DropSize, choose_effort, choose_start
from ccl.continual_encoder.exporting import load_backbone
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.pretrained_start import source_of
from ccl.errors import UserError
from ccl.runs.session import Session
from ccl.section import merged

Command = Callable[..., tuple[int, str, str]]
QUIET: dict[str, Any] = {"progress": False}
SMALL: dict[str, Any] = {
    **{key: TINY[key] for key in ("epochs", "batch_size", "threads", "device", "moco_v2")},
    "data": {"resize": 16, "workers": 0},
    "views": {"size": 16},
    "memory": {"clusters": 3, "budget": 12},
    "predictive_distillation": {"hidden": 8},
}
VIT = {"encoder": {"backbone": "networks:SmallViT", "dim": 8}}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return networks.save_vit(tmp_path / "vit.safetensors")


@pytest.fixture
def started(tmp_path: Path, weights: Path) -> ContinualEncoder:
    return ContinualEncoder.create(tmp_path / "state", weights=weights, **merged(SMALL, VIT))


def test_the_start_is_version_0(started: ContinualEncoder, deliver: Deliver, labelled: Path, tmp_path: Path) -> None:
    held = started.frozen().encoder.backbone.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in load_file(tmp_path / "vit.safetensors").items())
    assert (started.version, started.versions, started.num_steps) == (0, [0], 0)
    rows = started.encode(deliver("some", "textures", 0, 4))
    assert rows.shape == (4, 8)
    recipe = started.frozen().recipe
    assert (recipe.mean, recipe.std) == ((0.5, 0.4, 0.3), (0.25, 0.5, 0.125))  # the network's own
    (outcome,) = started.learn(deliver("week-1"), probe=labelled, **QUIET)
    assert (outcome.kind, outcome.version, started.versions) == ("learned", 1, [0, 1])
    assert outcome.step["accuracy"]["linear_before"] is not None  # of version 0
    assert outcome.step["health"]["neighbour_overlap"] is not None  # compared with it, though it remembers nothing
    metrics = (started.folder / "steps/00000001/metrics.jsonl").read_text()
    assert "predictive_distillation" in metrics  # in the first drop
    assert (started.encode(deliver("some", "textures", 0, 4), version=0) == rows).all()
    assert started.rollback() == 0
    assert (started.encode(deliver("some", "textures", 0, 4)) == rows).all()
    assert not (started.folder / "report.html").exists()
    started.learn(deliver("week-2", "textures"), **QUIET)
    assert started.version == 2
    with pytest.raises(UserError, match=r"version 0 .* is what it started from"):
        started.health(0)


def test_exported_and_started_from_again(
    started: ContinualEncoder, deliver: Deliver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = started.export(tmp_path / "vit-0.safetensors", images=deliver("some", "textures", 0, 4))
    assert exported.max_difference < 1e-5  # torch has other kernels where nothing learns
    with pytest.raises(UserError, match="does not say which network"):  # a file does not choose what is imported
        source_of(str(exported.path), {})
    with pytest.raises(UserError, match="it is of networks:SmallViT"):
        load_backbone(exported.path)
    assert isinstance(load_backbone(exported.path, "networks:SmallViT"), networks.SmallViT)
    again = ContinualEncoder.create(tmp_path / "again", weights=exported.path, **merged(SMALL, VIT))
    some = deliver("some", "textures", 0, 4)
    assert (again.encode(some) == started.encode(some)).all()

    ours = ContinualEncoder.create(tmp_path / "ours", **TINY)
    ours.learn(deliver("week-1"), **QUIET)
    file = ours.export(tmp_path / "ours.safetensors", images=some).path
    child = ContinualEncoder.create(tmp_path / "child", weights=file, **{**SMALL, "data": {"workers": 0}, "views": {}})
    assert child.frozen().architecture.backbone == "convnet"
    assert child.frozen().preprocessing == ours.frozen().preprocessing
    assert (child.encode(some) == ours.encode(some)).all()

    monkeypatch.setitem(sys.modules, "timm", networks.fake_timm())
    timm = ContinualEncoder.create(tmp_path / "timm", weights="timm:resnet_small", **SMALL)
    assert timm.frozen().recipe.mean == (0.1, 0.2, 0.3)
    assert torch.unique(timm.frozen().encoder.backbone.state_dict()["stem.weight"]).tolist() == [0.25]


def test_kept_images_are_rehearsed_from_the_first_drop_on(tmp_path: Path, weights: Path, deliver: Deliver) -> None:
    past = deliver("past", "textures", 0, 20)
    encoder = ContinualEncoder.create(tmp_path / "state", weights=weights, keep=past, **merged(SMALL, VIT))
    assert len(EncoderFolder(encoder.folder).memory_of(0)) == 12  # the budget
    shutil.rmtree(past)
    (outcome,) = encoder.learn(deliver("week-1"), **QUIET)
    memory = EncoderFolder(encoder.folder).memory_of(1)
    assert torch.unique(memory.steps).tolist() == [-1, 0]
    assert len(memory) == 12
    assert outcome.step["health"]["group_agreement"][0] is not None
    (known,) = encoder.learn(deliver("past", "textures", 0, 20), **QUIET)
    assert known.kind == "known"


def test_a_drop_on_the_start_resumes_to_the_same_bits(
    tmp_path: Path, weights: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "broken"):
        ContinualEncoder.create(tmp_path / name, weights=weights, **merged(SMALL, VIT))
    weights.unlink()  # version 0 has all of it
    drop = deliver("week-1")
    ContinualEncoder.open(tmp_path / "whole").learn(drop, **QUIET)
    real, calls = Session.save, []

    def save(self: Session, *arguments: Any) -> None:
        real(self, *arguments)
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "save", save)
        with pytest.raises(KeyboardInterrupt):
            ContinualEncoder.open(tmp_path / "broken").learn(drop, **QUIET)
    ContinualEncoder.open(tmp_path / "broken").learn(drop, **QUIET)
    assert fingerprint(tmp_path / "whole") == fingerprint(tmp_path / "broken")


def test_from_the_command_line(shell: Command, tmp_path: Path, weights: Path, deliver: Deliver) -> None:
    drop, state = deliver("week-1"), tmp_path / "state"
    sets = ["epochs=1", "batch_size=12", "views.size=16", "data.resize=16", "data.workers=0", "memory.clusters=3"]
    sets += ["encoder.backbone=networks:SmallViT", "encoder.dim=8", "moco_v2.queue_size=16"]
    given = [word for text in sets for word in ("--set", text)]
    code, out, _ = shell("learn", drop, "--into", state, "--from", weights, *given, "--dry-run")
    assert (code, state.exists()) == (0, False)
    assert "30 new images, 1 epoch in batches of 12" in out
    code, out, _ = shell("learn", drop, "--into", state, "--from", weights, *given)
    assert code == 0
    assert "gained and lost: new images" in out
    assert "weights: loaded" in out.replace("\n", "")
    assert EncoderFolder(state).ledger().current == 1
    assert shell("learn", deliver("week-2", "textures"), "--into", state, "--from", weights)[0] == 0  # the same start
    code, _, err = shell("learn", drop, "--into", state, "--from", tmp_path / "other.pt")
    assert code == 2
    assert "started from" in err
    assert shell("rollback", state, "--to", "0")[0] == 0
    code, out, _ = shell("status", state)
    assert "has learned nothing yet, and starts from" in " ".join(out.split())
    for words, told in (
        (["--keep", drop], "add --from"),
        (["--set", f"encoder.weights={weights}"], "--from"),
        (["--from", weights], "add --set encoder.backbone="),
        (["--from", "resnet18"], "name a file, or timm:resnet18 or torchvision:resnet18"),
        (["--from", "absent.pt"], "absent.pt: there is no such file"),
    ):
        code, _, err = shell("learn", drop, "--into", tmp_path / "b", *words)
        assert (code, told in err) == (2, True)
    assert not (tmp_path / "b").exists()


def test_weights_of_losses_are_settings_as_before(tmp_path: Path) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", weights={"contrast": 0.5})
    assert EncoderFolder(encoder.folder).ledger().asked == {"weights": {"contrast": 0.5}}
    with pytest.raises(UserError, match="keep is for an encoder that starts from weights"):
        ContinualEncoder.create(tmp_path / "other", keep=tmp_path)


def test_what_people_name(tmp_path: Path) -> None:
    assert source_of("timm:vit_tiny", {}) == {"backbone": "timm:vit_tiny", "weights": "pretrained"}
    assert source_of("my.module:Net", {}) == {"backbone": "my.module:Net", "weights": "pretrained"}
    for config, expected in (
        ({"architecture": "resnet18"}, {"backbone": "resnet18", "stem": "imagenet"}),
        ({"architecture": "vit_tiny.x", "model_args": {"a": 1}}, {"backbone": "timm:vit_tiny", "options": {"a": 1}}),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert source_of(str(tmp_path), {}) == {**expected, "weights": str(tmp_path)}
    asked = {"encoder": {"backbone": "resnet34"}}
    assert source_of(str(tmp_path), asked) == {"weights": str(tmp_path)}


def test_defaults_for_a_start_do_less_than_those_from_nothing() -> None:
    known = {"encoder": {"backbone": "resnet18", "weights": "x.pt"}}
    settings, (why,) = choose_start(known, False, 128, {}, num_stages=5)
    assert (settings.views.size, settings.data.resize) == (128, 146)
    assert settings.encoder.freeze_stages == 2
    assert "batch norm frozen, and the first 2 of 5 stages, " in why
    asked = {"encoder": {**known["encoder"], "freeze_stages": 0}}
    assert choose_start(asked, False, 128, {}, num_stages=5)[0].encoder.freeze_stages == 0
    assert settings.encoder.freeze_batch_norm
    assert "predictive_distillation" in settings.method.retention
    effort, why = choose_effort(DropSize(800), False, {"epochs": 3}, adapts=True)
    assert "800 images → batches of 64, 3 epochs" in why
    assert "to adapt, at a rate of 0.001" in why
    from_nothing, _ = choose_effort(DropSize(800), False, {})
    assert effort["epochs"] * 800 / effort["batch_size"] < from_nothing["epochs"] * 800 / from_nothing["batch_size"] / 5
    epochs = [choose_effort(DropSize(count), False, {}, adapts=True)[0]["epochs"] for count in (100, 1_000, 100_000)]
    assert epochs == [20, 19, 2]
