"""Shards made for tests: tars as WebDataset has them, and Parquet files as Hugging Face has them."""

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

LONG_AGO = 1_700_000_000  # seconds; files so old are remembered in caches


def png(seed: int, side: int = 16) -> bytes:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_tar(path: Path, files: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> Path:
    """A tar of these files, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def labelled_tars(folder: Path, num_shards: int = 3, per_shard: int = 10, num_classes: int = 2) -> list[Path]:
    """Shards "part-000.tar" … of pictures 0, 1, …, whose labels in .cls are their numbers modulo the classes."""
    paths = []
    for shard in range(num_shards):
        files = {}
        for number in range(shard * per_shard, (shard + 1) * per_shard):
            files[f"{number:04d}.png"] = png(number)
            files[f"{number:04d}.cls"] = str(number % num_classes).encode()
        paths.append(write_tar(folder / f"part-{shard:03d}.tar", files))
    return paths
