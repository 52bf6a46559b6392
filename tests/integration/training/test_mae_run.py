"""MAE on real pictures: a short run whose loss falls; what a probe finds is reported, not asserted."""

import json
from pathlib import Path

from breaking import quiet

from ccl.loading import load_settings
from ccl.runs import run


def test_a_short_run_learns_to_predict_hidden_patches(tmp_path: Path) -> None:
    settings = ["dataset=symbols", "steps=1", "strategy=finetuning", "objective=mae", "epochs=3", "encoder.width=48"]
    run(load_settings("demo", [*settings, "threads=1"]), tmp_path / "run", quiet())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["losses"]["contrast"] for row in rows if row["kind"] == "epoch"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * 47 / 48  # a guess of each patch's mean
    print(f"losses {losses}", (tmp_path / "run" / "accuracy.csv").read_text())
