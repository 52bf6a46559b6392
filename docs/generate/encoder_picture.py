"""The picture of an encoder folder's page: `python docs/generate/encoder_picture.py OUT [EPOCHS]`, and chromium.

Four drops of 500 drawn pictures each are learned in OUT, a minute of processor time at 20 epochs a drop, and
`docs/images/encoder-page.png` is taken of the page. Stopped, the same line resumes.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import ccl

TARGET = Path(__file__).parents[1] / "images" / "encoder-page.png"
DROPS = ("symbols", "capitals", "greek", "textures")
LABELLED = 20  # pictures of each class, a fifth of which are held out to measure accuracy
SIZE = (1180, 1560)  # pixels of the window


def learn(out: Path, epochs: int) -> Path:
    """An encoder folder that has learned the four drops, probed after each."""
    sets = {name: ccl.load_dataset(name, resize=16) for name in DROPS}
    for name, found in sets.items():
        for label, title in enumerate(found.class_names):
            folder = out / "labelled" / f"{name}-{title}"
            folder.mkdir(parents=True, exist_ok=True)
            for position in (found.test_labels == label).nonzero().flatten()[:LABELLED].tolist():
                (folder / f"{position:03d}.png").write_bytes(found.test.encoded(position))
    own = out / "my-encoder"
    if (own / "ledger.json").exists():
        encoder = ccl.ContinualEncoder.open(own)
    else:
        small = {"encoder": {"backbone": "convnet"}, "memory": {"budget": 100}, "threads": 1}
        encoder = ccl.ContinualEncoder.create(own, epochs=epochs, **small)
    for week, name in list(enumerate(DROPS, start=1))[encoder.num_steps :]:
        folder = out / f"week-{week}"
        folder.mkdir(exist_ok=True)
        for position in range(500):
            (folder / f"{position:03d}.png").write_bytes(sets[name].train.encoded(position))
        encoder.learn(folder, probe=out / "labelled")
    return own / "report.html"


def photograph(page: Path) -> None:
    """The upper part of the page as a small file."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the picture is taken by chromium, which is not on the PATH")
    with TemporaryDirectory() as scratch:
        picture = Path(scratch) / "page.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={scratch}/profile",
        ]
        window = [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={picture}"]
        subprocess.run([chromium, *flags, *window, page.resolve().as_uri()], check=True, capture_output=True)
        Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=32).save(TARGET, optimize=True)


if __name__ == "__main__":
    photograph(learn(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20))
