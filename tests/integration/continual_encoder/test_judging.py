"""What features are worth, beside start, pixels and HOG; what a drop gained and lost, and in words."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from drops import TINY, Deliver, deliver_to
from PIL import Image
from torch import Tensor

from ccl import ContinualEncoder, FrozenEncoder
from ccl.continual_encoder import folder_page
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.folder_page import (
    class_table,
    confusion_figure,
    gains_line,
    health,
    score_table,
    step_warnings,
    write_confusion,
)
from ccl.continual_encoder.judge import MOMENT, recognised, verdict_of
from ccl.continual_encoder.probe_classifiers import ProbeReport, probe, warnings
from ccl.data import load_dataset
from ccl.encoders import EncoderOptions
from ccl.errors import UserError
from ccl.evaluation import Drift, ProbeScore, Reading, pixel_features, recognition, score_features
from ccl.report.svg_figures import to_svg
from ccl.report.tables import text
from ccl.section import merged
from ccl.views import RECIPES, Viewer

MakeFrozen = Callable[..., FrozenEncoder]
Command = Callable[..., tuple[int, str, str]]


def test_beside_the_features_stand_start_pixels_and_hog(make_frozen: MakeFrozen, labelled: Path) -> None:
    dataset = load_dataset("folder", labelled)
    swapped = replace(dataset, test_labels=torch.tensor([1, *dataset.test_labels[1:].tolist()]))
    report = probe(make_frozen(), swapped, make_frozen(version=0, seed=7))
    assert list(report.scores) == ["features", "start", "pixels", "hog"]
    train, test = (pixel_features(source) for source in (dataset.train, dataset.test))
    for name in ("pixels", "hog"):
        expected, _ = score_features(train[name], dataset.train_labels, test[name], swapped.test_labels)
        assert report.scores[name] == expected
    assert report.scores["features"] == ProbeScore(75.0, 75.0, 4)  # one label of four is wrong
    assert report.confusion.tolist() == [[1, 0], [1, 2]]
    assert report.per_class == {"apple": 100.0, "kiwi": pytest.approx(200 / 3)}
    assert "raw pixels (16 px)" in report.warnings[0]


def test_a_warning_for_each_baseline_that_is_not_clearly_beaten() -> None:
    scores = {"features": 36.0, "start": 30.0, "pixels": 36.5, "hog": 56.0}
    found = warnings({name: ProbeScore(value, 20.0, 200) for name, value in scores.items()})
    assert found[0] == (
        "the learned features do not beat raw pixels (16 px): 36.0 ± 3.4 % against 36.5 ± 3.4 %, linear"
    )
    assert "do not beat HOG with colours" in found[1]
    assert "are not clearly better than the start" in found[2]
    scores |= {"features": 80.0}
    assert warnings({name: ProbeScore(value, 20.0, 200) for name, value in scores.items()}) == []
    assert warnings({}) == []


def test_tables_and_picture(tmp_path: Path) -> None:
    names, confusion = ("cat", "<b>", "dog", "none"), torch.tensor([[3, 1, 0, 0], [0, 4, 0, 0], [2, 1, 1, 0], [0] * 4])
    table = class_table(names, confusion)
    assert tuple(tuple(map(text, row)) for row in table.rows) == (
        ("dog", "4", "25.0 ± 21.7", "cat (2)"),
        ("cat", "4", "75.0 ± 21.7", "<b> (1)"),
        ("<b>", "4", "100.0 ± 0.0", "–"),
    )
    assert len(class_table(names, confusion, most=2).rows) == 2
    scores = {"features": ProbeScore(50.0, 25.0, 100), "pixels": ProbeScore(0.0, 100.0, 100)}
    assert [text(cell) for cell in score_table(scores).rows[0]] == ["learned features", "50.0 ± 5.0", "25.0 ± 4.3"]
    drawn = to_svg(confusion_figure(names, confusion))
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    write_confusion(tmp_path / "c.png", names, confusion)
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.format == "PNG"
    many = confusion_figure(tuple(map(str, range(100))), torch.eye(100, dtype=torch.int64))
    assert many.axes[0].get_title(loc="left") == "100 classes, in the order of their names"


def test_the_command_shows_them_and_warns(command: Command, labelled: Path, tmp_path: Path) -> None:
    code, told, error = command("probe", tmp_path / "state", labelled)
    assert (code, error) == (0, "")
    for words in ("learned features", "the start, before", "raw pixels", "HOG with colours", "Class by class"):
        assert words in told
    assert "warning: the learned features do not beat raw pixels (16 px): 100.0 ± 0.0 %" in told
    assert (tmp_path / "state" / "classifiers" / "fruit-v3.confusion.png").is_file()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[bytes]]) -> Path:
    """Two drops, both probed."""
    place = tmp_path_factory.mktemp("probed")
    for domain in ("symbols", "textures"):
        shutil.copytree(deliver_to(place, pictures, f"of-{domain}", domain, 60, 10), place / "labelled" / domain)
    encoder = ContinualEncoder.create(place / "state", **TINY)
    for name, domain in (("week-1", "symbols"), ("week-2", "textures")):
        encoder.learn(deliver_to(place, pictures, name, domain), probe=place / "labelled", progress=False)
    return place


@pytest.fixture
def probed(learned: Path, tmp_path: Path) -> tuple[ContinualEncoder, Path]:
    """A copy of it, and its labelled folder."""
    for name in ("state", "labelled"):
        shutil.copytree(learned / name, tmp_path / name)
    return ContinualEncoder.open(tmp_path / "state"), tmp_path / "labelled"


def test_after_a_drop_the_line_the_table_and_the_page_say_it(probed: tuple[ContinualEncoder, Path]) -> None:
    encoder, folder = probed
    first, second = (step["accuracy"] for step in encoder.status()["steps"])
    assert set(first["beside"]) == {"start", "pixels", "hog"}
    assert first["beside"] == second["beside"]  # not measured again
    assert (second["linear_before"], second["knn_before"]) == (first["linear"], first["knn"])
    assert "confusion" not in second
    report = encoder.probe(folder)
    assert report.scores["features"].linear == second["linear"]
    for name in ("start", "pixels", "hog"):
        score = report.scores[name]
        assert {"linear": score.linear, "knn": score.knn} == second["beside"][name]
    kept = json.loads((encoder.folder / "steps" / "00000002" / "probe.json").read_text())
    assert kept == {"classes": ["symbols", "textures"], "counts": report.confusion.tolist()}
    rows: dict[Any, Any] = {row[0]: row[1:] for row in health(encoder.status()["steps"][-1]).rows}
    knn = (second["beside"]["start"]["knn"], first["knn"], second["knn"])
    assert rows["nearest neighbours' accuracy, %"] == tuple(f"{v:.1f}" if v >= 10 else f"{v:.2f}" for v in knn)
    start = encoder.health()["start_agreement"]
    assert f"{start:.0f} % at the start)" in encoder.health()["verdict"]
    page = (encoder.folder / "report.html").read_text()
    assert '<section id="accuracy">' in page
    for words in ("raw pixels (16 px)", "HOG with colours", "the start, before the first drop", "taken for"):
        assert words in page
    assert page.count("Warning:") == len(report.warnings)
    for content in ('{"classes": ["a"]}', None):  # what was mistaken is not whole, or gone
        path = encoder.folder / "steps" / "00000002" / "probe.json"
        path.unlink() if content is None else path.write_text(content)
        folder_page.write_page(EncoderFolder(encoder.folder))
        assert "taken for" not in (encoder.folder / "report.html").read_text()


def test_images_with_labels_are_probed_as_a_folder_is(probed: tuple[ContinualEncoder, Path]) -> None:
    encoder, folder = probed
    paths = [str(path) for path in sorted(folder.rglob("*.png"))]
    labels = [Path(path).parent.name for path in paths]
    expected = encoder.probe(folder, save=False)
    for images in (paths, [Image.open(path) for path in paths]):
        report = encoder.probe(images, labels, path=folder.parent / "c.safetensors")
        assert (report.class_names, report.scores) == (expected.class_names, expected.scores)
        assert report.classifier.about == expected.classifier.about
    assert (folder.parent / "c.confusion.png").is_file()
    (folder / "symbols" / "000.png").write_bytes(b"none")
    found = encoder.probe([*paths, folder / "symbols" / "000.png"], [*labels, "symbols"], max_bad=20, save=False)
    assert found.class_names == expected.class_names
    with pytest.raises(UserError, match="19 labels for 20 images"):
        encoder.probe(paths, labels[1:])
    with pytest.raises(UserError, match="labels are missing"):
        encoder.probe(paths)


def test_the_whole_object(probed: tuple[ContinualEncoder, Path]) -> None:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from ccl import EncoderTransformer

    encoder, folder = probed
    assert repr(encoder) == f"ContinualEncoder.open({str(encoder.folder)!r})"
    encoder.probe(folder)
    answers = encoder.predict(folder)
    assert [path for path, _, _ in answers] == sorted(str(path) for path in folder.rglob("*.png"))
    assert {name for _, name, _ in answers} <= {"symbols", "textures"}
    assert all(0.5 <= confidence <= 1 for _, _, confidence in answers)
    (folder / "textures" / "broken.png").write_bytes(b"none")
    rows, paths = encoder.encode(folder, return_paths=True)
    assert rows.shape == (20, encoder.frozen().encoder.num_features)
    assert paths == [path for path, _, _ in answers]
    with pytest.raises(ValueError, match="1 of 21 images can't be decoded"):
        encoder.encode(folder)
    pixels = load_dataset("symbols", resize=16).train.subset(torch.arange(5)).read(torch.arange(5))
    (answer,) = encoder.search(pixels[3:4], pixels, folder.parent / "s.html", k=2)  # arrays, too
    assert answer.hits[0][0].content == answer.query.content
    labels = [Path(path).parent.name for path in paths]
    pipeline = make_pipeline(EncoderTransformer(encoder.folder), LogisticRegression())
    fitted = clone(pipeline).fit(paths, labels)
    transformer = fitted[0]
    assert transformer.get_params() == {"folder": encoder.folder, "version": None}
    assert (transformer.version_, len(transformer.get_feature_names_out())) == (2, rows.shape[1])
    encoder.rollback(1)
    assert (transformer.transform(paths) == rows).all()  # as it was fitted
    assert fitted.score(paths, labels) > 0.5
    with pytest.raises(ValueError, match="has no classifier for version 1"):
        encoder.predict(folder)
    assert len(encoder.predict(folder, any_version=True)) == 20


def test_too_many_bad_files_are_listed_and_may_be_left_out(command: Command, labelled: Path, tmp_path: Path) -> None:
    for number in range(2):
        (labelled / "apple" / f"z{number}.jpg").write_bytes(b"none")
    out = tmp_path / "fruit.safetensors"
    table = tmp_path / "fruit.safetensors.bad_images.csv"
    code, _, error = command("probe", tmp_path / "state", labelled, "--out", out)
    assert code == 2
    assert f"all are listed in {table}; --max-bad " in error
    assert len(table.read_text().splitlines()) > 1
    assert not out.exists()
    code, told, _ = command("probe", tmp_path / "state", labelled, "--out", out, "--max-bad", "40")
    assert code == 0
    assert "2 left out as not usable" in " ".join(told.split())
    assert out.exists()
    assert len(table.read_text().splitlines()) == 3


QUIET: dict[str, Any] = {"progress": False}
NEW = {"num_images": 256, "start": 40.0, "before": 50.0, "after": 62.5}
OLD = {"num_images": 100, "start": 55.0, "before": 60.0, "after": 58.75}


def step(new: Any = NEW, old: Any = OLD, accuracy: Any = None, from_weights: bool = True) -> dict[str, Any]:
    gains = {"from_weights": from_weights, "has_past": True, "new": new, "old": old}
    return {"accuracy": accuracy, "gains": gains}


def labelled_at(now: float) -> dict[str, Any]:
    beside = {kind: {"linear": 75.0 if kind == "start" else 1.0, "knn": 0.0} for kind in ("start", "pixels", "hog")}
    return {"linear": now, "knn": 0.0, "linear_before": 72.0, "num_test": 10_000, "beside": beside}


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
    assert gains_line({}) == ""  # nothing was learned


def test_where_the_start_is_as_good_it_says_so() -> None:
    assert step_warnings(step()) == []
    # Of 256 images, 40 and 31 % have standard errors of 3.06 and 2.89 points: 8.4 is two of the difference.
    (line,) = step_warnings(step(new={**NEW, "after": 31.0}))
    assert "less often than by the start" in line
    assert "ccl rollback ENCODER --to 0" in line
    assert step_warnings(step(new={**NEW, "after": 32.0})) == []
    assert step_warnings(step(new={**NEW, "after": 31.0}, from_weights=False)) == []
    _, line = step_warnings(step(accuracy=labelled_at(75.0)))
    assert "the start, left frozen, does as well or better" in line
    assert line not in step_warnings(step(accuracy=labelled_at(75.1)))
    assert line not in step_warnings(step(accuracy=labelled_at(75.0), from_weights=False))
    scores = {"features": ProbeScore(70.0, 70.0, 100), "start": ProbeScore(75.0, 70.0, 100)}
    for from_weights in (True, False):
        report = ProbeReport(None, scores, ("a", "b"), None, from_weights)  # type: ignore[arg-type]
        assert (line in report.warnings) == from_weights


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drift_of(before: Tensor | None, after: Tensor, start: Tensor | None = None) -> Drift:
    """Of rows in four groups, one noisy view of each."""
    rows = [None if one is None else Reading(one, one, one + 0.1 * draw(*one.shape, seed=7)) for one in (before, after)]
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
    reader = FrozenEncoder(encoder, viewer, EncoderOptions(), 1)  # type: ignore[arg-type]
    found = recognised({"start": reader, "before": reader, "after": None}, source)
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
