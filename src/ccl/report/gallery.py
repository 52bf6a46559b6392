"""The images of a rehearsal memory, small enough to stand in a page themselves."""

import base64
import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ccl.folder import MEMORY

MOST_IMAGES = 60  # of a run's memory
_THUMBNAIL = 96  # longest side of an embedded image
_MOST_BYTES = 4000  # of an image taken as it is, any of 32×32 is below; larger files would make the page heavy
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


@dataclass(frozen=True)
class KeptImage:
    """One image of the memory, as it is shown."""

    source: str  # a data URI
    is_small: bool
    facts: tuple[str, ...]  # its step, and cluster and variance where it has them


def gallery(folder: Path, most: int = MOST_IMAGES) -> list[tuple[str, list[KeptImage]]]:
    """Groups of a run's kept images with their titles: those of lowest and highest variance, or drawn at random."""
    rows = _index(folder / MEMORY)
    scored = sorted((row for row in rows if not math.isnan(row[3])), key=lambda row: row[3])
    if not scored:  # a random draw has no scores: images at even distances over the steps
        every = max(1, math.ceil(len(rows) / most))
        groups = [(f"Drawn at random ({len(rows)} kept)", rows[::every])]
    else:
        half = min(most // 2, math.ceil(len(scored) / 2))
        lowest, highest = scored[:half], scored[half:][-half:]
        groups = [(f"Lowest variance ({len(rows)} kept)", lowest), ("Highest variance among the kept", highest)]
    memory = folder / MEMORY
    shown = [(title, [image for row in group if (image := _embedded(memory, *row))]) for title, group in groups]
    return [(title, images) for title, images in shown if images]


def has_memory(folder: Path) -> bool:
    """Whether a run kept images."""
    return bool(_index(folder / MEMORY))


def _index(memory: Path) -> list[tuple[str, str, str, float]]:
    """File, step, cluster and score of each image; lines that are none are passed over."""
    rows = []
    try:
        with (memory / "index.csv").open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                try:
                    rows.append((line["file"], line["step"], line["cluster"], float(line["score"])))
                except (KeyError, TypeError, ValueError):
                    continue
    except (OSError, ValueError, csv.Error):
        return []
    return rows


def _embedded(memory: Path, name: str, step: str, cluster: str, score: float) -> KeptImage | None:
    """The image in the page itself; None for what is no image, or lies elsewhere than in the memory's folder."""
    if Path(name).name != name:
        return None
    try:
        content = (memory / name).read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            mime, longest = _MIME.get(image.format or ""), max(image.size)
            if mime is None or longest > _THUMBNAIL or len(content) > _MOST_BYTES:
                mime, content = "image/jpeg", _thumbnail(image)
            else:
                image.load()  # a cut file has a head, but is no image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    facts = [f"step {step}"]
    facts += [] if cluster == "-1" else [f"cluster {cluster}"]  # a random draw has no clusters
    facts += [] if math.isnan(score) else [f"variance {score:.2g}"]
    source = f"data:{mime};base64,{base64.b64encode(content).decode()}"
    return KeptImage(source, longest <= _PIXELATED, tuple(facts))


def _thumbnail(image: Image.Image) -> bytes:
    small = image.convert("RGB")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=85)
    return file.getvalue()
