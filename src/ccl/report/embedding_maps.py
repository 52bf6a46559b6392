"""Old and new data in the space of embeddings: a map, and a number that says how mixed they are."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ccl.data.streams import evenly_spaced
from ccl.report.arms import Arm
from ccl.report.seed_statistics import estimate
from ccl.report.svg_figures import Drawing, drawing, drawing_of
from ccl.runs.run_folder import EMBEDDINGS

OLD_COLOUR, NEW_COLOUR = "#2b83ba", "#f07818"  # the paper's figure: old data blue, new data orange
NUM_NEIGHBOURS = 10
_MOST = 1000  # images of a run that are compared; more are thinned out evenly
_MOST_DRAWN = 400  # the map says no more with more, and the page grows heavy
_SIZE = 2.7  # inches


@dataclass(frozen=True)
class Cloud:
    """Embeddings of test images at a run's end, and which of them are of its newest step."""

    rows: NDArray[np.float64]  # (N, D), unit norm
    is_new: NDArray[np.bool_]  # (N,), some true and some false


def read_cloud(folder: Path) -> Cloud | None:
    """None where there are no embeddings, the file can't be read, or all images are of one step."""
    try:
        with np.load(folder / EMBEDDINGS, allow_pickle=False) as file:
            rows, step = file["embeddings"].astype(np.float64), file["step"]
    except Exception:  # a damaged archive raises whatever its layers do: zip, zlib, struct, numpy's header, memory
        return None
    if rows.ndim != 2 or min(rows.shape) < 2 or step.shape != (len(rows),) or step.dtype.kind not in "iu":
        return None
    chosen = evenly_spaced(len(rows), _MOST).numpy()
    rows, is_new = rows[chosen], (step == step.max())[chosen]
    if is_new.all() or not is_new.any() or not np.isfinite(rows).all():
        return None
    # Stored in half precision: brought back to unit norm.
    norms = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return Cloud(rows / norms, is_new)


def mixing(cloud: Cloud) -> float:
    """The mean share of new images among an old one's nearest neighbours by cosine, over that of a random mixture."""
    similarity = cloud.rows @ cloud.rows.T  # (N, N)
    np.fill_diagonal(similarity, -math.inf)
    num = min(NUM_NEIGHBOURS, len(similarity) - 1)
    nearest = np.argsort(-similarity[~cloud.is_new], axis=1, kind="stable")[:, :num]  # (old, num)
    expected = cloud.is_new.sum() / (len(cloud.is_new) - 1)
    return float(cloud.is_new[nearest].mean() / expected)


def plane(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Positions (N, 2) on the two main directions of these rows themselves, and the share of variance they hold."""
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = vectors[:, :-3:-1]  # (D, 2), the largest first
    # A direction has no sign of its own: its largest part is made positive.
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])]
    total = float(values.sum())
    share = float(values[:-3:-1].sum()) / total if total > 0 else math.nan
    return centred @ (axes * np.where(largest < 0, -1.0, 1.0)), share


def draw(places: NDArray[np.float64], is_new: NDArray[np.bool_]) -> Figure:
    """Old images as blue triangles, the newest step's as orange circles; many are thinned out evenly."""
    chosen = evenly_spaced(len(places), _MOST_DRAWN).numpy()
    places, is_new = places[chosen], is_new[chosen]
    with drawing():
        figure = Figure(figsize=(_SIZE, _SIZE))
        axes = figure.subplots()
        for is_shown, marker, colour in ((~is_new, "^", OLD_COLOUR), (is_new, "o", NEW_COLOUR)):
            axes.plot(*places[is_shown].T, marker, color=colour, markersize=4, markeredgewidth=0, alpha=0.65)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_alpha(0.3)
    return figure


def embedding_maps(arms: Sequence[Arm]) -> tuple[list[Drawing], int]:
    """A drawing per arm with embeddings of one seed, and that seed: the one of most arms, the smallest of several."""
    read = {arm.name: {one.settings.seed: read_cloud(one.folder) for one in arm.records} for arm in arms}
    clouds = {name: {seed: one for seed, one in found.items() if one is not None} for name, found in read.items()}
    counts = Counter(seed for found in clouds.values() for seed in found)
    if not counts:
        return [], 0
    seed = min(counts, key=lambda one: (-counts[one], one))
    drawn: list[Drawing] = []
    for name, found in clouds.items():
        if seed not in found:
            continue
        cloud, about = found[seed], estimate([mixing(one) for one in found.values()])
        places, share = plane(cloud.rows)
        lines = [f"mixing {mixing(cloud):.2f}"]
        lines += [f"mean of {about.num} seeds {about.mean:.2f} ± {about.std:.2f}"] if about.num > 1 else []
        lines.append(f"the plane holds {100 * share:.0f} % of the variance")
        drawn.append(drawing_of(name, draw(places, cloud.is_new), str(len(drawn)), tuple(lines)))
    return drawn, seed
