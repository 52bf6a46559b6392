"""What opening images costs on the way into an encoder: CPU seconds of a use against what it can't do without."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import Row
from ccl import ContinualEncoder
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, frozen_start
from ccl.continual_encoder.probe_classifiers import probe
from ccl.data import load_dataset
from ccl.data.decoding import square_picture
from ccl.encoders import evaluating

NUM_IMAGES, SIZE, NUM_CLASSES = 1000, 500, 10


def opening() -> Iterator[Row]:
    """`encode` ÷ (decoding each file once + the network), `probe` ÷ (the same decoding + judging what was decoded)."""
    with tempfile.TemporaryDirectory() as scratch:
        photos = _photographs(Path(scratch) / "photos")
        ours = ContinualEncoder.create(Path(scratch) / "encoder", epochs=1)
        ours.learn([str(path) for path in sorted(photos.rglob("*.jpg"))[:64]], progress=False)
        with closing(ours.frozen()) as encoder, closing(frozen_start(ours.folder)) as first:
            side = encoder.resize
            assert side is not None
            dataset = load_dataset("folder", photos, resize=side)
            decoding, network, encoding, judging, probing = _cpu_seconds(
                lambda: _decode(photos, side),
                lambda: _run(encoder),
                lambda: ours.encode(photos),
                lambda: probe(encoder, dataset, first),
                lambda: ours.probe(photos, save=False),
            )
            name = "encode, 1,000 photographs: CPU ÷ decoding once and the network"
            yield Row(name, encoding / (decoding + network), 1.15, at_least=False)
            name = "probe, 1,000 photographs: CPU ÷ decoding once and judging"
            yield Row(name, probing / (decoding + judging), 1.15, at_least=False)


def _photographs(folder: Path) -> Path:
    """JPEGs of 50 KB or so, in class folders."""
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        picture = Image.fromarray((smooth + rng.normal(0, 12, (SIZE, SIZE, 1))).clip(0, 255).astype(np.uint8))
        path = folder / str(number % NUM_CLASSES) / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=85)
    return folder


def _decode(photos: Path, side: int) -> None:
    for path in photos.rglob("*.jpg"):
        with Image.open(path) as image:
            square_picture(image, side)


def _run(encoder: FrozenEncoder) -> None:
    views = torch.zeros(500, 3, encoder.recipe.size, encoder.recipe.size)
    with evaluating(encoder.encoder):
        for _ in range(NUM_IMAGES // 500):
            encoder.encoder.features(views)


def _cpu_seconds(*actions: Callable[[], object], rounds: int = 5) -> list[float]:
    """The least of each action, of this process with all its threads; in turns, as in `fastest`."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for number, action in enumerate(actions):
            started = time.process_time()
            action()
            best[number] = min(best[number], time.process_time() - started)
    return best
