"""The comparison of ways to adapt: its arms are valid settings, its probes fold fairly, its table is by hand."""

from pathlib import Path

import pytest
import torch
from benchmarks.adapting import ARMS, NUM_FOLDS, folded, table
from benchmarks.result_rows import add_row, read_rows

from ccl.continual_encoder.choose_settings import choose_start
from ccl.report.tables import text
from ccl.section import merged

NEW = {"greek linear": 80.0, "greek kNN": 70.0, "cifar linear": 60.0, "cifar kNN": 50.0}


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_is_valid(name: str) -> None:
    known = {"encoder": {"backbone": "adapt_pretrained:EfficientNetLite0", "weights": "x.pth"}}
    settings, _ = choose_start(merged(known, ARMS[name].settings), False, 64, {})
    is_frozen = settings.encoder.freeze_batch_norm
    assert is_frozen == (name != "finetuning")
    assert ("predictive_distillation" in settings.method.retention) == is_frozen
    assert (settings.method.weight_rule == "merge") == is_frozen


def test_every_image_is_tested_by_a_probe_that_has_not_seen_it() -> None:
    labels = torch.arange(4).repeat(20)
    clear = torch.eye(4)[labels] + 0.01 * torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    assert folded(clear, labels) == (100.0, 100.0)
    # Each image is a direction of its own: a probe that had seen it would know it, one that has not can't.
    own = torch.eye(80)
    assert max(folded(own, labels)) < 60
    assert 80 % NUM_FOLDS == 0


def test_rows_are_kept_and_the_table_is_their_mean(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "results.csv"
    for seed, old in enumerate((75.0, 77.0)):
        add_row(path, {"arm": "start", "seed": seed, **NEW, "old linear": old, "old kNN": 70.0})
        add_row(path, {"arm": "default", "seed": seed, **NEW, "old linear": old - 1 - seed, "old kNN": 69.0})
    assert [(row["arm"], row["seed"]) for row in read_rows(path)] == [
        ("start", "0"),
        ("default", "0"),
        ("start", "1"),
        ("default", "1"),
    ]
    found = table(read_rows(path))
    cells = [[text(cell) for cell in row] for row in found.rows]
    assert cells[0] == [
        "frozen start", "80.0 ± 0.0", "70.0 ± 0.0", "60.0 ± 0.0", "50.0 ± 0.0", "76.0 ± 1.4", "70.0 ± 0.0", "–"
    ]  # fmt: skip
    assert cells[1][5:] == ["74.5 ± 0.7", "69.0 ± 0.0", "-1.5 ± 0.7"]
    assert "seeds 0, 1" in found.note
