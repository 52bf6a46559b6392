"""The images of a rehearsal memory, small enough to stand in a page themselves."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from ccl.folder import MEMORY
from ccl.report.thumbnails import thumbnail

MOST_IMAGES = 60  # of a run's memory


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
        shown = thumbnail((memory / name).read_bytes())
    except (OSError, ValueError):  # a name that no file can have
        return None
    if shown is None:
        return None
    facts = [f"step {step}"]
    facts += [] if cluster == "-1" else [f"cluster {cluster}"]  # a random draw has no clusters
    facts += [] if math.isnan(score) else [f"variance {score:.2g}"]
    return KeptImage(shown.source, shown.is_small, tuple(facts))
