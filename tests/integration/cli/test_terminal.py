"""On a real terminal: names of files, folders, archive members and drops reach it as text, whatever is in them."""

import os
import pty
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

# Write the clipboard, ask for the cursor, begin a line anew, turn the direction of writing, bytes that are not text.
EVIL = "evil\x1b]52;c;ZXZpbA==\x07\x1b[6n\r\nccl: all is well\u202egpj\x9b\udcff[bold]"
# What rich itself writes: colours, the cursor's line and column, whether it is seen.
_RICH = re.compile(r"\x1b\[[\d;]*[mAK]|\x1b\[\?25[lh]")
SETTINGS = ["epochs=1", "batch_size=8", "threads=1", "device=cpu", "data.resize=16", "views.size=16", "data.workers=0"]
SETTINGS += ["encoder.backbone=convnet", "encoder.width=4", "encoder.dim=8", "moco_v2.queue_size=16"]
SETTINGS += ["memory.budget=8", "memory.clusters=2"]


def on_a_terminal(folder: Path, *words: object) -> tuple[int, str]:
    """The exit code, and what the terminal was given but for what rich writes itself."""
    mine, its = pty.openpty()
    arguments = [word if isinstance(word, bytes) else os.fsencode(str(word)) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ccl", *arguments],
        cwd=folder,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    content = b""
    while True:
        try:
            content += os.read(mine, 1 << 16)
        except OSError:  # all of it was read
            break
    os.close(mine)
    return process.wait(), _RICH.sub("", content.decode(errors="surrogateescape")).replace("\r\n", "\n")


def photos(folder: Path, first: int = 0, count: int = 24) -> Path:
    folder.mkdir(parents=True)
    for number in range(first, first + count):
        image = Image.new("RGB", (16, 16), (number * 10 % 256, 255 - number * 9 % 256, number % 5 * 50))
        image.putpixel((number % 16, number // 2 % 16), (255, 255, 255))
        image.save(folder / f"{number:02d}.png")
    return folder


@pytest.mark.slow
def test_names_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    drop = photos(tmp_path / EVIL)
    (drop / f"{EVIL}.png").write_bytes(b"no image")
    labelled = tmp_path / "labelled"
    for first, name in ((30, EVIL.replace("\udcff", "")), (50, "=plain")):
        photos(labelled / name, first, 20)
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        for path in drop.iterdir():
            archive.add(path, path.name)
        archive.add(drop / "00.png", f"../{EVIL}.png")
    encoder, sets = tmp_path / "encoder", [word for value in SETTINGS for word in ("--set", value)]
    commands: list[tuple[int, list[object]]] = [
        (0, ["learn", drop, "--into", encoder, *sets, "--max-bad", 50]),
        (0, ["status", encoder]),
        (0, ["learn", "labelled", "--into", encoder, "--name", EVIL, "--max-bad", 50, "--probe", labelled]),
        (0, ["status", encoder]),
        (0, ["encode", encoder, drop, "-o", f"{EVIL}.csv"]),
        (0, ["encode", encoder, "photos.tar", "-o", "features.npz"]),
        (0, ["probe", encoder, labelled]),
        (0, ["predict", encoder, drop, "-o", f"{EVIL}.csv"]),
        (0, ["verify", encoder]),
        (2, ["encode", encoder, drop / f"{EVIL}.png", "-o", "other.npz"]),
        (2, ["encode", encoder, tmp_path / f"{EVIL}-not-there", "-o", "other.npz"]),
        (2, ["verify", tmp_path / f"{EVIL}-not-there"]),
        (2, ["encode", encoder, "shards:s3://me:se/cret@b/a.tar?token=se/cret", "-o", "other.npz"]),
        (2, ["run", "demo", "--set", f"dataset={EVIL}", "--out", tmp_path / "run"]),
        (2, ["run", f"{EVIL}.yaml", "--out", tmp_path / "run"]),
        (2, ["learn", "--into", encoder, f"--{EVIL}"]),
    ]
    obeyed, shown = [], 0
    for code, words in commands:
        done, said = on_a_terminal(tmp_path, *words)
        raw = [part for part in ("\x1b", "\x07", "\u202e", "\x9b", "\udcff", "se/cret") if part in said]
        raw += [line for line in said.splitlines() if line.startswith("ccl: all is well")]
        if raw or done != code:
            obeyed.append((words[0], done, raw, said[-600:]))
        shown += r"evil\x1b]52;c;ZXZpbA==\x07\x1b[6n\r\nccl: all is well\u202egpj" in said
    assert obeyed == []
    assert shown >= 10
    page = (encoder / "report.html").read_text()
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(page)
