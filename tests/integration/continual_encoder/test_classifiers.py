"""Classifiers: right on what is easy, the same after a file, refused where they don't belong, deaf to hostile files."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canary import Canary
from safetensors.torch import save_file

from ccl import FrozenEncoder
from ccl.continual_encoder.probe_classifiers import (
    Classifier,
    default_path,
    load_classifier,
    newest,
    predict,
    probe,
    save_classifier,
)
from ccl.data import load_dataset
from ccl.errors import UserError

MakeFrozen = Callable[..., FrozenEncoder]


@pytest.fixture
def fitted(make_frozen: MakeFrozen, labelled: Path) -> Classifier:
    return probe(make_frozen(), load_dataset("folder", labelled)).classifier


def test_a_classifier_is_measured_on_what_it_was_not_fitted_on(make_frozen: MakeFrozen, labelled: Path) -> None:
    told: list[tuple[int, int]] = []
    dataset = load_dataset("folder", labelled)
    found = probe(make_frozen(), dataset, progress=lambda done, total: told.append((done, total))).classifier
    assert found.about.classes == ("apple", "kiwi")
    assert (found.about.version, found.about.num_features, found.about.num_images) == (3, 32, 16)
    assert (found.about.accuracy.num_images, found.about.accuracy.num_neighbours) == (4, 8)
    assert found.about.accuracy.linear == found.about.accuracy.knn == 100.0
    assert told[-1] == (20, 20)


def test_a_file_gives_the_same_predictions_with_softmax_confidence(
    make_frozen: MakeFrozen, fitted: Classifier, labelled: Path, tmp_path: Path
) -> None:
    frozen = make_frozen()
    rows = frozen.features(load_dataset("folder", labelled).train)
    save_classifier(fitted, tmp_path / "c.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "c.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode  # not the owner's alone
    again = load_classifier(tmp_path / "c.safetensors")
    assert again.about == fitted.about
    found = predict(frozen, again, rows)
    assert found == predict(frozen, fitted, rows)
    assert [prediction.name for prediction in found] == ["apple"] * 8 + ["kiwi"] * 8
    logits = fitted.linear.logits(rows[:1])[0].tolist()
    expected = 1 / (1 + 2.718281828459045 ** (logits[1] - logits[0]))
    assert found[0].confidence == pytest.approx(expected, rel=1e-5)


def test_another_version_s_classifier_is_refused_unless_one_insists(
    make_frozen: MakeFrozen, fitted: Classifier
) -> None:
    rows = torch.zeros(1, 32)
    with pytest.raises(UserError, match=r"version 3, and this is version 4.*--version 3.*--any-version"):
        predict(make_frozen(version=4, seed=4), fitted, rows)
    assert len(predict(make_frozen(version=4, seed=4), fitted, rows, any_version=True)) == 1
    with pytest.raises(UserError, match="reads 32 features, and this encoder gives 40"):
        predict(make_frozen(width=5), fitted, torch.zeros(1, 40), any_version=True)


def test_labels_are_needed(make_frozen: MakeFrozen, labelled: Path) -> None:
    with pytest.raises(UserError, match="has no labels"):
        probe(make_frozen(), load_dataset("folder", labelled / "apple"))
    for path in (labelled / "kiwi").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="one class only"):
        probe(make_frozen(), load_dataset("folder", labelled))


def test_the_newest_of_this_version_is_taken(make_frozen: MakeFrozen, fitted: Classifier, tmp_path: Path) -> None:
    frozen = make_frozen()
    with pytest.raises(UserError, match="has no classifier for version 3; make one: ccl probe"):
        newest(tmp_path, frozen)
    foreign = replace(fitted, about=fitted.about.model_copy(update={"fingerprint": "0" * 16, "version": 2}))
    for age, (name, classifier) in enumerate([("old", fitted), ("young", fitted), ("foreign", foreign)]):
        path = default_path(tmp_path, Path(name), 3)
        save_classifier(classifier, path)
        os.utime(path, (1000 + age, 1000 + age))
    assert newest(tmp_path, frozen) == tmp_path / "classifiers" / "young-v3.safetensors"
    with pytest.raises(UserError, match=r"only for others \(foreign-v3.safetensors, young"):
        newest(tmp_path, make_frozen(seed=9))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"classes": ["a"]}, "a tensor is"),
        ({"classes": "ab"}, "classes"),
        ({"version": "3"}, "version"),
        ({"format": 2}, "format"),
        ({"accuracy": {"linear": 101, "knn": 0, "num_neighbours": 1, "num_images": 1}}, "accuracy.linear"),
        ({"num_features": 31}, "a tensor is"),
        ({"more": 1}, "more"),
        *((scale, "") for scale in (torch.full((32,), float("nan")), torch.zeros(32), torch.ones(32).double())),
    ],
)
def test_what_contradicts_itself_is_refused(
    fitted: Classifier, tmp_path: Path, change: dict[str, Any] | torch.Tensor, why: str
) -> None:
    path = tmp_path / "c.safetensors"
    tensors = {name: getattr(fitted.linear, name) for name in ("weights", "bias", "centre", "scale")}
    tensors |= {"scale": change} if isinstance(change, torch.Tensor) else {}
    about = json.loads(fitted.about.model_dump_json()) | (change if isinstance(change, dict) else {})
    save_file(tensors, path, metadata={"ccl": json.dumps(about)})
    with pytest.raises(UserError, match=f"not a classifier by ccl probe: .*{why}") as told:
        load_classifier(path)
    assert "\n" not in str(told.value)


def test_no_code_runs_and_what_is_no_classifier_is_said_so(tmp_path: Path) -> None:
    path, canary = tmp_path / "c.safetensors", tmp_path / "canary"
    torch.save({"weights": Canary(canary)}, path)
    files = [path.read_bytes(), pickle.dumps(Canary(canary)), b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"]
    for content in files:
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a classifier by ccl probe"):
            load_classifier(path)
    assert not canary.exists()
    with pytest.raises(UserError, match="not a classifier by ccl probe"):
        load_classifier(tmp_path / "absent.safetensors")
