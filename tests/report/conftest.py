"""Hand-made run records: what a run folder would tell, with numbers that are easy to check."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ccl.evaluation import AccuracyMatrix, ProbeResult
from ccl.loading import load_settings
from ccl.report import RunRecord

Rows = Sequence[Sequence[float] | None]


@pytest.fixture
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


@pytest.fixture
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
