"""Hand-made run records with numbers that are easy to check."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ccl.evaluation import AccuracyMatrix, ProbeResult
from ccl.loading import load_settings
from ccl.runs.run_folder import RunRecord

Rows = Sequence[Sequence[float] | None]


@pytest.fixture(scope="session")
def matrix_of() -> Callable[[Rows], AccuracyMatrix]:
    """Rows of per-step accuracies, the random encoder's first; None for one not measured. All classes: half of each."""

    def make(rows: Rows) -> AccuracyMatrix:
        matrix = AccuracyMatrix(len(rows) - 1)
        for number, row in enumerate(rows):
            if row is not None:
                half = tuple(value / 2 for value in row)
                matrix.record(number - 1 if number else None, ProbeResult(tuple(row), half, sum(half) / len(half), ""))
        return matrix

    return make


@pytest.fixture(scope="session")
def record_of(matrix_of: Callable[[Rows], AccuracyMatrix]) -> Callable[..., RunRecord]:
    """A record of a stream of as many steps as names; `told` overrides the protocol, `changes` the settings."""

    def make(
        strategy: str,
        rows: Rows | None,
        *changes: str,
        names: Sequence[str] = ("digits", "capitals", "greek"),
        state: str = "complete",
        folder: str = "",
        **told: Any,
    ) -> RunRecord:
        settings = load_settings("demo", ["epochs=30", "batch_size=64", *changes]).model_copy(
            update={"strategy": strategy}
        )
        protocol = {
            "dataset": "+".join(names),
            "fingerprint": "f00d",
            "class_order": "0123",
            "steps": [{"name": name, "num_classes": 10, "num_images": 100} for name in names],
            "all_at_once": strategy == "upper_bound",
            "backbone": settings.encoder.backbone,
            "stem": settings.encoder.stem,
            "views": settings.views.recipe,
            "seed": settings.seed,
            "ccl": "0.1.0",
            "torch": "2.6.0",
            "python": "3.11.9",
            "device": "cpu",
            "threads": 2,
        }
        probes = [{"kind": "probe", "after": 0, "protocol": "logistic regression"}] if rows else []
        num_steps = 1 if strategy == "upper_bound" else len(names)
        epochs = [
            {
                "kind": "epoch",
                "step": step,
                "epoch": epoch,
                "losses": {"contrast": 6.0 - step / epoch} | ({"distillation": 3.0 / epoch} if step > 1 else {}),
                "seconds": 1.25,
            }
            for step in range(1, num_steps + 1)
            for epoch in (1, 2)
        ]
        return RunRecord(
            folder=Path(folder or f"runs/{strategy}"),
            settings=settings,
            protocol=protocol | told,
            status={"state": state},
            rows=[*probes, *epochs],
            accuracy=matrix_of(rows) if rows else None,
        )

    return make


@pytest.fixture(scope="session")
def keep_images() -> Callable[..., None]:
    """Gives a run folder a memory whose image number i has the red value i, all of step 2 and cluster 5."""

    def keep(folder: Path, scores: Sequence[float], size: int = 16) -> None:
        (folder / "memory").mkdir(parents=True)
        with (folder / "memory" / "index.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file", "id", "step", "cluster", "score"])
            for number, score in enumerate(scores):
                Image.new("RGB", (size, size), (number, 0, 0)).save(folder / "memory" / f"{number:06d}.png")
                table.writerow([f"{number:06d}.png", number, 2, 5, score])

    return keep


@pytest.fixture(scope="session")
def keep_embeddings() -> Callable[..., None]:
    """Gives a run folder embeddings: images at these angles (in degrees) on a circle, and their steps."""

    def keep(folder: Path, degrees: Sequence[float], steps: Sequence[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        angles = np.radians(degrees)
        rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float16)
        np.savez_compressed(folder / "embeddings.npz", embeddings=rows, step=np.array(steps), label=np.array(steps))

    return keep


@pytest.fixture(scope="session")
def compare(
    record_of: Callable[..., RunRecord], keep_images: Callable[..., None], keep_embeddings: Callable[..., None]
) -> Callable[[Path], list[RunRecord]]:
    """Makes four strategies of two seeds with everything that a run can leave."""
    seeds = [
        [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]],
        [[34, 36, 38], [84, 46, 47], [76, 80, 60], [66, 72, 96]],
    ]

    def make(place: Path) -> list[RunRecord]:
        runs = []
        for strategy in ("finetuning", "variance_distillation", "ccl", "upper_bound"):
            for seed, rows in enumerate(seeds):
                shown = rows if strategy != "upper_bound" else [rows[0], None, None, rows[3]]
                folder = place / f"{strategy}-{seed}"
                runs.append(record_of(strategy, shown, f"seed={seed}", folder=str(folder)))
                keep_embeddings(folder, [0, 10, 90, 180], [1, 1, 2, 3])
                if strategy == "ccl":
                    keep_images(folder, [0.1, 0.2])
        return runs

    return make
