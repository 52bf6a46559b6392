"""Encoders that nobody trained, whose batch norm has statistics of its own, and small folders of pictures."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from drops import Deliver, deliver_to
from networks import make_encoder
from PIL import Image

from ccl import FrozenEncoder
from ccl.cli import main
from ccl.continual_encoder import continual_encoder
from ccl.continual_encoder.folder import EncoderFolder
from ccl.data import load_dataset
from ccl.encoders import EncoderOptions
from ccl.memory import RehearsalMemory
from ccl.views import RECIPES, Viewer

MakeFrozen = Callable[..., FrozenEncoder]
# What a version says of itself before it has learned a drop.
NEW: dict[str, object] = {"created": 0.0, "parent": 0, "strategy": "ccl", "settings": {}, "steps": []}


@pytest.fixture
def make_frozen() -> MakeFrozen:
    def make(
        backbone: str = "convnet",
        *,
        stem: str = "cifar",
        width: int | None = 4,
        groups: int = 1,
        size: int = 16,
        fraction: float = 1.0,
        resize: int | None = None,
        version: int = 3,
        seed: int = 0,
        about: dict[str, object] = NEW,
    ) -> FrozenEncoder:
        encoder = make_encoder(backbone, stem=stem, width=width, dim=8, batch_norm_groups=groups, seed=seed)
        draws = torch.Generator().manual_seed(seed)
        for name, tensor in encoder.backbone.state_dict().items():
            if name.endswith("running_mean"):
                tensor.copy_(torch.randn(tensor.shape, generator=draws) / 10)
            elif name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=draws) + 0.5)
        options = EncoderOptions.model_validate(
            {"backbone": backbone, "stem": stem, "width": width, "dim": 8, "batch_norm_groups": groups}
        )
        recipe = replace(RECIPES["moco_cifar"], size=size, plain_fraction=fraction)
        return FrozenEncoder(encoder.eval(), Viewer(recipe, 0), options, version, resize, about)

    return make


def paint(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    """A noisy picture of about one colour, some 40 pixels wide."""
    draws = np.random.default_rng(seed)
    height, width = 30 + seed % 5, 40 - seed % 7
    noise = draws.integers(-40, 41, (height, width, 3)) + np.array(colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Two classes of ten pictures."""
    folder = tmp_path / "fruit"
    for number in range(10):
        paint(folder / "apple" / f"{number:02d}.png", (200, 60, 60), number)
        paint(folder / "kiwi" / f"{number:02d}.png", (60, 200, 60), 50 + number)
    return folder


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`ccl …` in this process: exit code, output, errors."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ccl", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        told = capsys.readouterr()
        assert isinstance(code, int | None)
        return code or 0, told.out, told.err

    return call


@pytest.fixture
def command(shell: Command, make_frozen: MakeFrozen, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same, with an untrained encoder in every state."""

    def frozen(folder: Path, version: int | None) -> FrozenEncoder:
        return make_frozen(version=version or 3, seed=version or 3)

    monkeypatch.setattr(continual_encoder, "frozen", frozen)
    monkeypatch.setattr(continual_encoder, "frozen_start", lambda folder: make_frozen(version=0, seed=99))
    monkeypatch.setattr(EncoderFolder, "memory_of", lambda folder, number: RehearsalMemory())
    return shell


@pytest.fixture(scope="session")
def pictures() -> dict[str, list[bytes]]:
    """PNG files of two domains, some of each class, mixed."""
    found = {}
    for domain in ("symbols", "textures"):
        source = load_dataset(domain, resize=16).train
        order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:80]
        found[domain] = [source.encoded(position) for position in order.tolist()]
    return found


@pytest.fixture
def deliver(tmp_path: Path, pictures: dict[str, list[bytes]]) -> Deliver:
    """Makes a folder with some pictures of a domain."""
    return partial(deliver_to, tmp_path, pictures)
