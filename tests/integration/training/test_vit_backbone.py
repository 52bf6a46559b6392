"""Vision transformers in runs, and masked autoencoders with them."""

import json
from pathlib import Path

import pytest
import torch
from breaking import quiet
from networks import make_encoder
from tiny import learn, tiny_settings

from ccl import run
from ccl.catalogue import OBJECTIVES
from ccl.loading import load_settings

VIT = "encoder.backbone=vit_tiny"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_with_it(objective: str) -> None:
    settings = tiny_settings("strategy=simple_rehearsal", f"objective={objective}", VIT, "epochs=1")
    learner, watch = learn(settings)
    before = make_encoder("vit_tiny", width=4).backbone.state_dict()
    moved = [
        name for name, value in learner.encoder.backbone.state_dict().items() if not torch.equal(value, before[name])
    ]
    assert len(moved) == len(before)
    assert all(torch.isfinite(torch.tensor(losses["contrast"])) for losses in watch.losses)


@pytest.mark.parametrize("freeze", ["encoder.freeze_stages=3", "encoder.freeze_batch_norm=true"])
def test_frozen_stages_stay_as_they_are(freeze: str) -> None:
    learner, _ = learn(tiny_settings("strategy=ccl", VIT, freeze, "optimizer.layer_decay=0.7", "epochs=1"))
    before = make_encoder("vit_tiny", width=4).backbone.state_dict()
    still = {name for name, value in learner.encoder.backbone.state_dict().items() if torch.equal(value, before[name])}
    frozen = ("embed.", "blocks.0.", "blocks.1.") if "stages" in freeze else ("nothing",)
    assert still == {name for name in before if name.startswith(frozen)}


def test_there_are_no_statistics_to_estimate_anew() -> None:
    remembered, _ = learn(tiny_settings("strategy=merged_rehearsal", VIT, "encoder.statistics=remembered", "epochs=1"))
    plain, _ = learn(tiny_settings("strategy=merged_rehearsal", VIT, "epochs=1"))
    theirs = plain.encoder.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in remembered.encoder.state_dict().items())


def test_a_short_run_learns_to_predict_hidden_patches(tmp_path: Path) -> None:
    settings = ["dataset=symbols", "steps=1", "strategy=finetuning", "objective=mae", "epochs=3", "encoder.width=48"]
    run(load_settings("demo", [*settings, "threads=1"]), tmp_path / "run", quiet())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["losses"]["contrast"] for row in rows if row["kind"] == "epoch"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * 47 / 48  # a guess of each patch's mean
    print(f"losses {losses}", (tmp_path / "run" / "accuracy.csv").read_text())
