"""Folders of strangers: nothing in them, and nothing in the folder where a command is started, runs as code."""

import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from PIL import Image

PACKAGES = ["ccl", "filelock", "jinja2", "matplotlib", "numpy", "PIL", "pydantic", "yaml", "rich", "safetensors"]
PACKAGES += ["sklearn", "scipy", "torch", "typer", "timm", "torchvision", "pyarrow", "fsspec", "tensorboard", "json"]
# What leaves a file where it is imported.
CANARY = "import os, pathlib\npathlib.Path(os.environ['CANARY'] + '-' + __name__).touch()\n"
NETWORK = """
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return self.layer(images).mean(dim=(2, 3))
"""
SMALL = ["epochs=1", "batch_size=8", "threads=1", "device=cpu", "data.resize=16", "views.size=16", "data.workers=0"]
SMALL += ["encoder.width=4", "encoder.dim=8", "moco_v2.queue_size=16", "memory.budget=8", "memory.clusters=2"]


def sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for number in range(24):
        colour = (number * 10, 255 - number * 9, number % 5 * 50)
        image = Image.new("RGB", (16, 16), colour)
        image.putpixel((number % 16, number // 2), (255, 255, 255))
        image.save(tmp_path / "photos" / f"{number:02d}.png")
    return tmp_path / "photos"


def test_a_strangers_class_is_refused_until_the_folder_is_trusted(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "own_network.py").write_text(CANARY + NETWORK)
    canary = tmp_path / "canary-own_network"
    where = {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}", "CANARY": str(tmp_path / "canary")}
    maker, user = (os.environ | where | {"CCL_CONFIG": str(tmp_path / name)} for name in ("maker", "user"))
    encoder = tmp_path / "encoder"
    own = sets("encoder.backbone=own_network:Network", *SMALL)
    made = processes.ccl("learn", photos, "--into", encoder, *own, environment=maker)
    assert made.returncode == 0, made.stderr
    assert canary.exists()
    canary.unlink()

    def use(command: str, *words: object, environment: dict[str, str] = user) -> tuple[int, str]:
        done = processes.ccl(command, *words, environment=environment)
        return done.returncode, done.stdout + done.stderr

    out = ("-o", tmp_path / "features.npz")
    uses = [("encode", encoder, photos, *out), ("export", encoder, "-o", tmp_path / "encoder.safetensors")]
    uses += [("search", encoder, photos / "00.png", photos, "-o", tmp_path / "search.html")]
    uses += [("learn", photos, "--into", encoder, "--restart")]
    for command, *words in uses:
        code, said = use(str(command), *words)
        assert code == 2, said
        assert "own_network:Network, and importing that would run code" in said
        assert "--trust" in said
        assert said.count("ccl: ") == 1
        assert not canary.exists()
    for command, *words in [("status", encoder), ("verify", encoder)]:  # read without it
        assert use(str(command), *words)[0] == 0
        assert not canary.exists()

    assert use("encode", encoder, photos, *out, environment=maker)[0] == 0  # who made it is not asked
    assert use("encode", encoder, photos, *out, "--trust")[0] == 0
    assert use("encode", encoder, photos, *out)[0] == 0
    assert canary.exists()


def test_a_table_of_a_strangers_run_needs_no_class(tmp_path: Path) -> None:
    (tmp_path / "own_objective.py").write_text(
        CANARY + "from ccl.objectives import SimCLR\n\nclass Mine(SimCLR):\n    pass\n"
    )
    where = {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}", "CANARY": str(tmp_path / "canary")}
    environment, other = (os.environ | where | {"CCL_CONFIG": str(tmp_path / name)} for name in ("maker", "user"))
    own = sets("objective=own_objective:Mine", "strategy=simple_rehearsal", "epochs=1", "probe.after=last")
    made = processes.ccl("run", "demo", *processes.SMALL, *own, "--out", tmp_path / "run", environment=environment)
    assert made.returncode == 0, made.stderr
    (tmp_path / "canary-own_objective").unlink()
    for command in ("report", "verify"):
        done = processes.ccl(command, tmp_path / "run", environment=other)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "canary-own_objective").exists()


@pytest.mark.slow
def test_nothing_is_imported_from_the_working_directory(tmp_path: Path, photos: Path) -> None:
    """As users start it: the program `ccl`, in a folder full of modules that are called as ours and our packages."""
    here = tmp_path / "here"
    here.mkdir()
    for name in PACKAGES:
        (here / f"{name}.py").write_text(CANARY + "raise SystemExit(3)\n")
    encoder = tmp_path / "encoder"
    small = [word for word in processes.SMALL if "dataset" not in word]
    grid = ["--set=dataset=symbols", "--set=steps=1", "--set=epochs=1", "--seeds=0-1", "--strategies=finetuning"]
    commands = [
        ("learn", photos, "--into", encoder, *sets(*SMALL, "encoder.backbone=convnet")),
        ("encode", encoder, photos, "-o", "features.npz"),
        ("compare", "demo", *small, *grid, "--out", "runs"),
        ("report", "runs"),
        ("export", encoder, "-o", "encoder.safetensors"),
        ("doctor", "--measure"),
    ]
    # The script that is installed, but for the interpreter.
    program = tmp_path / "ccl"
    program.write_text("import sys\nfrom ccl.cli import main\nsys.exit(main())\n")
    environment = os.environ | {"CANARY": str(tmp_path / "canary")}
    for words in commands:
        done = subprocess.run(
            [sys.executable, program, *map(str, words)], cwd=here, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-1000:])
    assert list(tmp_path.glob("canary-*")) == []
    assert (here / "runs" / "report.html").exists()
