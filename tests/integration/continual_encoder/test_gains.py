"""After a drop one line says what was gained and lost: its words by hand, its numbers from the versions themselves."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from drops import TINY, Deliver
from torch import Tensor

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


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drift_of(before: Tensor | None, after: Tensor, start: Tensor | None = None) -> Drift:
    """Of rows in four groups, one noisy view of each."""
    rows = [None if one is None else Reading(one, one, one + 0.1 * draw(*one.shape, seed=7)) for one in (before, after)]
    assert rows[1] is not None
    return Drift.of(rows[0], rows[1], torch.arange(len(after)) % 4, start)


def test_a_verdict_on_new_images_does_not_call_them_old() -> None:
    rows = draw(40, 6)
    drift = drift_of(rows, rows)
    assert verdict_of(drift, is_of_new=True) == (
        "nothing old was remembered, so only new images can be compared: they keep 100 % of their neighbours."
    )
    assert verdict_of(drift).startswith("kept: ")
    assert verdict_of(drift_of(None, rows * 0), is_of_new=True) == (
        "collapsed: all embeddings are zero. Don't use this version."
    )
    assert verdict_of(None) == "nothing is remembered, so nothing can be compared"


def test_verdicts() -> None:
    groups = torch.arange(200) % 4
    rows, start = 3 * draw(4, 8, seed=5)[groups] + draw(200, 8), draw(200, 8, seed=9)
    same = drift_of(rows, rows @ torch.linalg.qr(draw(8, 8, seed=9)).Q, start)
    assert verdict_of(same) == (
        f"kept: old images still have 100 % of their neighbours. {same.group_agreement[1]:.0f} % lie among images of "
        f"their own group ({same.group_agreement[0]:.0f} % before, {same.start_agreement:.0f} % at the start)."
    )
    gone = drift_of(rows, draw(200, 8, seed=3), start)
    assert verdict_of(gone).startswith("lost: neighbours of old images changed for 9")
    assert f"{gone.group_agreement[1]:.0f} % lie among images of their own group" in verdict_of(gone)
    # The groups keep together while their members change places.
    centres = 9 * draw(4, 8, seed=5)[groups]
    inside = verdict_of(drift_of(centres + draw(200, 8, seed=1), centres + draw(200, 8, seed=2)))
    assert inside.startswith("changed: neighbours of old images changed for")
    assert inside.endswith("Fit anew what was built on the old features.")
    assert verdict_of(drift_of(None, rows)) == "first: nothing older can be compared."  # no agreement without a start
    first = drift_of(None, rows, start)
    assert f"% lie among images of their own group ({first.start_agreement:.0f} % at the start)." in verdict_of(first)
    assert verdict_of(drift_of(rows * math.nan, rows)).startswith("first: nothing older can")
    for num, words in ((0, "0 known images"), (1, "1 known image "), (2, "2 known images")):
        assert verdict_of(drift_of(rows[:num], rows[:num])).startswith(f"unclear: {words}")


def test_the_lines_between_verdicts() -> None:
    nowhere = (math.nan, math.nan)  # as groups: every image is alone in its own

    def kind(overlap: float, agreement: tuple[float, float]) -> str:
        return verdict_of(Drift(50, overlap, 0.0, nowhere, nowhere, nowhere, agreement, ())).split(":")[0]

    assert kind(0.5, (90.0, 78.0)) == "kept"
    assert kind(0.5, (90.0, 77.9)) == "lost"
    assert kind(0.49, (90.0, 99.0)) == "changed"
    assert kind(0.1, (90.0, 90.0)) == "changed"
    assert [kind(overlap, nowhere) for overlap in (0.9, 0.4, 0.2, 0.19)] == ["kept", "changed", "changed", "lost"]


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
