"""After a drop one line says what was gained and lost: its words by hand, its numbers from the versions themselves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder.judge import MOMENT, ProbeReport, recognised, verdict_of
from ccl.continual_encoder.show import frozen_advice, gains_line, step_warnings
from ccl.data import load_dataset
from ccl.evaluation import Drift, ProbeScore, Reading, recognition
from ccl.section import merged
from ccl.views import RECIPES, Viewer

Command = Callable[..., tuple[int, str, str]]
QUIET: dict[str, Any] = {"progress": False}
NEW = {"num_images": 256, "start": 40.0, "before": 50.0, "after": 62.5}
OLD = {"num_images": 100, "start": 55.0, "before": 60.0, "after": 58.75}


def step(new: Any = NEW, old: Any = OLD, accuracy: Any = None, from_weights: bool = True) -> dict[str, Any]:
    gains = {"from_weights": from_weights, "has_past": True, "new": new, "old": old}
    return {"accuracy": accuracy, "gains": gains}


def labelled_at(now: float) -> dict[str, Any]:
    return {"linear": now, "linear_before": 72.0, "beside": {"start": {"linear": 75.0}}}


def test_the_line_by_hand() -> None:
    assert gains_line(step()) == (
        "gained and lost: new images 50.0 → 62.5 % recognised in another view (+12.5, start 40.0); "
        "old images 60.0 → 58.8 % recognised in another view (-1.2, start 55.0). "
        "Recognition stands in for accuracy: no labels, 256 new and 100 old images that it trained on."
    )
    first = gains_line(step(new={**NEW, "before": None}, old=None) | {"gains": step(old=None)["gains"]})
    assert "old images: none were remembered, so what was lost is not known (--probe would show it)." in first
    assert "labelled images 72.0 → 78.0 % by a linear probe (+6.0, start 75.0); new" in gains_line(
        step(accuracy=labelled_at(78.0))
    )
    assert gains_line({"accuracy": None}) == ""  # of an earlier ccl


def test_where_the_start_is_as_good_it_says_so() -> None:
    assert frozen_advice(step()) == []
    # Of 256 images, 40 and 31 % have standard errors of 3.06 and 2.89 points: 8.4 is two of the difference.
    (line,) = frozen_advice(step(new={**NEW, "after": 31.0}))
    assert "less often than by the start" in line
    assert "ccl rollback ENCODER --to 0" in line
    assert frozen_advice(step(new={**NEW, "after": 32.0})) == []
    assert frozen_advice(step(new={**NEW, "after": 31.0}, from_weights=False)) == []
    (line,) = frozen_advice(step(accuracy=labelled_at(75.0)))
    assert "the start, left frozen, does as well or better" in line
    assert frozen_advice(step(accuracy=labelled_at(75.1))) == []
    assert line in step_warnings(step(accuracy=labelled_at(75.0)))
    scores = {"features": ProbeScore(70.0, 70.0, 100), "start": ProbeScore(75.0, 70.0, 100)}
    for from_weights in (True, False):
        report = ProbeReport(None, scores, ("a", "b"), None, from_weights)  # type: ignore[arg-type]
        assert (line in report.warnings) == from_weights


def test_a_verdict_on_new_images_does_not_call_them_old() -> None:
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    drift = Drift.of(Reading(rows, rows, rows), Reading(rows, rows, rows), torch.arange(40) % 4)
    assert verdict_of(drift, is_of_new=True) == (
        "nothing old was remembered, so only new images can be compared: they keep 100 % of their neighbours."
    )
    assert verdict_of(drift, is_of_new=False) == drift.verdict
    collapsed = Drift.of(None, Reading(rows, rows * 0, rows * 0), torch.arange(40) % 4)
    assert verdict_of(collapsed, is_of_new=True) == collapsed.verdict
    assert verdict_of(None, is_of_new=True) == "nothing is remembered, so nothing can be compared"


def test_at_most_256_images_are_read_and_equal_encoders_once() -> None:
    class Counting:
        calls = 0

        def modules(self) -> list[Any]:
            return []

        def embed(self, view: Any) -> Any:
            Counting.calls += len(view)
            return type("Embedded", (), {"features": view.flatten(1), "unit": view.flatten(1)})

    source, encoder = load_dataset("symbols", resize=16, images_per_class=30).train, Counting()
    viewer = Viewer(replace(RECIPES["moco_cifar"], size=16), 0)
    found = recognised({"start": (encoder, viewer), "before": (encoder, viewer), "after": None}, source)  # type: ignore[dict-item]
    assert found is not None
    assert (found["num_images"], Counting.calls) == (256, 512)
    assert found["start"] == found["before"] > 100 / 256
    assert found["after"] is None
    assert recognised({}, source.subset(torch.tensor([0]))) is None


@pytest.fixture
def started(tmp_path: Path) -> ContinualEncoder:
    small = {key: value for key, value in TINY.items() if key not in ("encoder", "extra_sample_queue")}
    network = {"encoder": {"backbone": "networks:SmallViT", "dim": 8}, "predictive_distillation": {"hidden": 8}}
    weights = networks.save_vit(tmp_path / "vit.safetensors")
    return ContinualEncoder.create(tmp_path / "state", weights=weights, **merged(small, network))


def test_numbers_are_those_of_the_versions(started: ContinualEncoder, deliver: Deliver, shell: Command) -> None:
    (first,) = started.learn(deliver("week-1"), **QUIET)
    assert first.step["gains"]["old"] is None
    new = first.step["gains"]["new"]
    assert new["num_images"] == 30
    assert new["start"] == new["before"]
    (second,) = started.learn(deliver("week-2", "textures"), **QUIET)
    gains = second.step["gains"]
    memory = started._folder.memory_of(1)
    old = memory.source_like(load_dataset("symbols", resize=16).train)
    for name, version in (("start", 0), ("before", 1), ("after", 2)):
        encoder = started.frozen(version)
        (batch,) = encoder.viewer.batches(old, [torch.arange(len(old))], moment=MOMENT, num_views=2)
        with torch.no_grad():
            views = [encoder.encoder.features(view) for view in batch.views]
        assert gains["old"][name] == pytest.approx(recognition(*views))
    code, out, _ = shell("status", started.folder)
    assert code == 0
    assert gains_line(second.step) in " ".join(out.split())
    assert "gained and lost: new images" in (started.folder / "report.html").read_text().replace("Gained", "gained")
    assert started.health()["gains"] == gains
