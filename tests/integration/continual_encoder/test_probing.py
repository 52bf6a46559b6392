"""What features are worth beside the start, pixels and HOG: in the report, after a drop, on the page."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drops import TINY, deliver_to
from PIL import Image

from ccl import ContinualEncoder
from ccl.continual_encoder import FrozenEncoder
from ccl.continual_encoder.judge import probe, warnings
from ccl.continual_encoder.show import class_table, confusion_figure, health, score_table, write_confusion
from ccl.data import load_dataset
from ccl.evaluation import ProbeScore, pixel_features, score_features
from ccl.report.figure_style import to_svg
from ccl.report.tables import text

MakeFrozen = Callable[..., FrozenEncoder]
Command = Callable[..., tuple[int, str, str]]


def test_beside_the_features_stand_start_pixels_and_hog(make_frozen: MakeFrozen, labelled: Path) -> None:
    dataset = load_dataset("folder", labelled)
    assert dataset.test is not None
    assert dataset.train_labels is not None
    assert dataset.test_labels is not None
    swapped = replace(dataset, test_labels=torch.tensor([1, *dataset.test_labels[1:].tolist()]))
    report = probe(make_frozen(), swapped, make_frozen(version=0, seed=7))
    assert list(report.scores) == ["features", "start", "pixels", "hog"]
    train, test = (pixel_features(source) for source in (dataset.train, dataset.test))
    assert swapped.test_labels is not None
    for name in ("pixels", "hog"):
        expected, _ = score_features(train[name], dataset.train_labels, test[name], swapped.test_labels)
        assert report.scores[name] == expected
    assert report.scores["features"] == ProbeScore(75.0, 75.0, 4)  # one label of four is wrong
    assert report.confusion is not None
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
    assert report.confusion is not None
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


def test_the_whole_object(probed: tuple[ContinualEncoder, Path]) -> None:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from ccl.continual_encoder import EncoderTransformer

    encoder, folder = probed
    assert repr(encoder) == f"ContinualEncoder({str(encoder.folder)!r}, version 2, 60 images in 2 drops)"
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
