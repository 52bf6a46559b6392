"""Images small enough to stand in a page themselves, and those that a run's rehearsal memory keeps."""

import base64
import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ccl.data import BadImageError
from ccl.data.decoding import decode
from ccl.run_files import MEMORY

SIDE = 96  # longest side of an embedded image
_MOST_BYTES = 4000  # of an image taken as it is, any of 32×32 is below; larger files would make the page heavy
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible
MOST_IMAGES = 60  # of a run's memory
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


@dataclass(frozen=True)
class Thumbnail:
    """An image as a page shows it."""

    source: str  # a data URI
    is_small: bool


KeptImage = tuple[Thumbnail, tuple[str, ...]]  # its facts: step, and cluster and variance where it has them


def thumbnail(content: bytes, side: int = SIDE) -> Thumbnail | None:
    """A file's image, as it is if small, else as a JPEG of at most this side; None for what is not an image."""
    picture = small_picture(content, side)
    if picture is None:
        return None
    with Image.open(io.BytesIO(content)) as header:  # of one of the formats that `decode` allows
        mime, longest = _MIME.get(header.format or ""), max(header.size)
    if mime is None or longest > side or len(content) > _MOST_BYTES:
        file = io.BytesIO()
        picture.save(file, format="JPEG", quality=85)
        mime, content = "image/jpeg", file.getvalue()
    return Thumbnail(f"data:{mime};base64,{base64.b64encode(content).decode()}", longest <= _PIXELATED)


def small_picture(content: bytes, side: int = SIDE) -> Image.Image | None:
    """A file's image as upright RGB of at most this side; None for what is not an image."""
    try:
        picture = decode(io.BytesIO(content), lambda width, height: _reduction(max(width, height), side))
    except BadImageError:
        return None
    picture.thumbnail((side, side))
    return picture


def _reduction(longest: int, side: int) -> int:
    """At least twice the side is left, for a smooth last step."""
    return next((divisor for divisor in (8, 4, 2) if longest >= 2 * divisor * side), 1)


def gallery(folder: Path, most: int = MOST_IMAGES, is_variance: bool = True) -> list[tuple[str, list[KeptImage]]]:
    """Groups of a run's kept images with their titles: those of lowest and highest score, or drawn at random.

    A score is a variance over views, or else the place in which an image was chosen.
    """
    memory = folder / MEMORY
    rows = _index(memory)
    scored = sorted((row for row in rows if not math.isnan(row[3])), key=lambda row: row[3])
    if not scored:  # a random draw has no scores: images at even distances over the steps
        every = max(1, math.ceil(len(rows) / most))
        groups = [(f"Drawn at random ({len(rows)} kept)", rows[::every])]
    else:
        half = min(most // 2, math.ceil(len(scored) / 2))
        lowest, highest = scored[:half], scored[half:][-half:]
        first, last = ("Lowest variance", "Highest variance") if is_variance else ("Chosen first", "Chosen last")
        groups = [(f"{first} ({len(rows)} kept)", lowest), (f"{last} among the kept", highest)]
    name = "variance" if is_variance else "place"
    shown = [(title, [image for row in group if (image := _embedded(memory, name, *row))]) for title, group in groups]
    return [(title, images) for title, images in shown if images]


def _index(memory: Path) -> list[tuple[str, str, str, float]]:
    """File, step, cluster and score of each image; other lines are skipped."""
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


def _embedded(memory: Path, what: str, name: str, step: str, cluster: str, score: float) -> KeptImage | None:
    """The image in the page itself; None for what is not an image of the memory's folder."""
    if Path(name).name != name:
        return None
    try:
        shown = thumbnail((memory / name).read_bytes())
    except (OSError, ValueError):  # a name that no file can have
        return None
    if shown is None:
        return None
    facts = [f"step {step}"]
    facts += [] if cluster == "-1" else [f"cluster {cluster}"]  # a random draw has no clusters
    facts += [] if math.isnan(score) else [f"{what} {score:.2g}"]
    return shown, tuple(facts)
