"""What a probe found, as tables and as a picture of which classes were taken for which."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ccl.atomic_files import replacing
from ccl.continual_encoder.encoder_folder import PROBE, STEPS, EncoderFolder
from ccl.continual_encoder.probing import TITLES
from ccl.evaluation import ProbeScore, standard_error
from ccl.report.figure_style import drawing, short
from ccl.report.seed_statistics import Estimate
from ccl.report.tables import Table

_MOST_NAMES = 40  # classes whose names stand beside the picture
_MOST_ROWS = 20  # classes of a table on a terminal

Confusion = tuple[tuple[str, ...], Tensor]  # names, and (C, C): images of class i that were taken for class j


def scores_of(accuracy: Mapping[str, Any] | None) -> dict[str, ProbeScore]:
    """What a version remembers of a probe, as scores; those of earlier versions of ccl have no baselines."""
    if not accuracy or "num_test" not in accuracy:
        return {}
    kinds = {"features": accuracy, **accuracy.get("beside", {})}
    return {
        kind: ProbeScore(kinds[kind]["linear"], kinds[kind]["knn"], accuracy["num_test"])
        for kind in TITLES
        if kind in kinds
    }


def score_table(scores: Mapping[str, ProbeScore]) -> Table:
    """Learned features beside what needs no learning, each with its standard error."""
    rows = [
        (
            TITLES[kind],
            _with_error(score.linear, score.linear_error, score.num_test),
            _with_error(score.knn, score.knn_error, score.num_test),
        )
        for kind, score in scores.items()
    ]
    num_test = next(iter(scores.values())).num_test
    note = f"Accuracy on {num_test:,} held-out images ± its standard error: what another draw of images would change."
    return Table("What the features are worth", ("", "linear, %", "nearest neighbours, %"), tuple(rows), note)


def class_table(names: Sequence[str], confusion: Tensor, most: int | None = _MOST_ROWS) -> Table:
    """Each class with its accuracy and what it was most often taken for, the worst first."""
    totals = confusion.sum(dim=1)  # (C,)
    accuracy = 100 * confusion.diagonal() / totals  # nan where a class has no test images
    mistakes = confusion.clone().fill_diagonal_(0)
    rows = []
    for place in sorted(torch.nonzero(totals).flatten().tolist(), key=lambda place: float(accuracy[place])):
        value, total = float(accuracy[place]), int(totals[place])
        taken, count = int(mistakes[place].argmax()), int(mistakes[place].max())
        mistaken = f"{names[taken]} ({count})" if count else None
        rows.append((names[place], f"{total:,}", _with_error(value, standard_error(value, total), total), mistaken))
    left_out = f" {len(rows) - most} better classes are not shown." if most and len(rows) > most else ""
    note = f"By the linear classifier, the worst first.{left_out}"
    columns = ("class", "images", "accuracy, %", "most often taken for")
    return Table("Class by class", columns, tuple(rows[:most]), note)


def _with_error(value: float, error: float, num_images: int) -> Estimate:
    """Shown as value ± error, on one line."""
    return Estimate(value, error, math.nan, math.nan, num_images)


def confusion_figure(names: Sequence[str], confusion: Tensor) -> Figure:
    """Rows are what the images are, columns what they were taken for; dark is a large share of the row."""
    shares = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1)  # (C, C)
    has_names = len(names) <= _MOST_NAMES
    side = 2.4 + (0.24 * len(names) if has_names else 4.5)
    with drawing():
        figure = Figure(figsize=(side + 0.6, side))
        axes = figure.subplots()
        shown = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xlabel("taken for")
        axes.set_ylabel("is")
        if has_names:
            labels = [short(name) for name in names]
            axes.set_xticks(range(len(names)), labels, rotation=90)
            axes.set_yticks(range(len(names)), labels)
        else:
            axes.set_title(f"{len(names)} classes, in the order of their names", loc="left")
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.colorbar(shown, ax=axes, shrink=0.7, label="share of the class")
    return figure


def write_confusion(path: Path, names: Sequence[str], confusion: Tensor) -> None:
    """The same as a PNG."""
    with replacing(path) as unfinished, drawing():
        figure = confusion_figure(names, confusion)
        figure.savefig(unfinished, format="png", dpi=120, facecolor="white")


def kept_confusion(folder: EncoderFolder, version: int) -> Confusion | None:
    """What the probe of a drop mistook for what; None where none was made, or its file can't be read."""
    try:
        content = json.loads((folder.path / STEPS / f"{version:08d}" / PROBE).read_text(encoding="utf-8"))
        names, counts = tuple(map(str, content["classes"])), torch.tensor(content["counts"], dtype=torch.int64)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return (names, counts) if counts.shape == (len(names), len(names)) and bool((counts >= 0).all()) else None
