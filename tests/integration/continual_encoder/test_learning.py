"""A state through its days: drops learned, known, refused, broken off, rolled back; and what must not be lost."""

import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drops import TINY, Deliver, deliver_to, fingerprint
from PIL import Image
from torch import Tensor

from ccl import ContinualEncoder
from ccl.atomic_files import DiskFullError
from ccl.continual_encoder import judge
from ccl.continual_encoder.folder import ENCODER, STEPS, EncoderFolder
from ccl.data import Dataset
from ccl.errors import UserError
from ccl.runs.folder_lock import locked, read_status
from ccl.runs.run_folder import read_rows
from ccl.runs.session import Session
from ccl.sealed_json import seal, unseal
from ccl.training.checkpoint import by_part

QUIET: dict[str, Any] = {"progress": False}


DROPS = (("week-1", "symbols"), ("week-2", "textures"))
Made = Callable[..., ContinualEncoder]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[bytes]]) -> Callable[..., Path]:
    """A state that has learned so many drops, never broken off and not to be changed; each is learned once."""
    place = tmp_path_factory.mktemp("kept")

    @cache
    def learned(num_drops: int, strategy: str | None) -> Path:
        folder = place / f"{strategy}-{num_drops}"
        if num_drops == 0:
            ContinualEncoder.create(folder, **TINY, strategy=strategy)
            return folder
        shutil.copytree(learned(num_drops - 1, strategy), folder)
        name, domain = DROPS[num_drops - 1]
        ContinualEncoder.open(folder).learn(deliver_to(place, pictures, name, domain), **QUIET)
        return folder

    return learned


@pytest.fixture
def made(kept: Callable[..., Path], tmp_path: Path) -> Made:
    """A copy of such a state."""

    def copied(num_drops: int = 2, strategy: str | None = None) -> ContinualEncoder:
        shutil.copytree(kept(num_drops, strategy), tmp_path / "state")
        return ContinualEncoder.open(tmp_path / "state")

    return copied


def test_each_drop_is_a_step_and_its_folder_may_go(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    assert (encoder.version, encoder.versions) == (0, [])
    for number, (name, domain) in enumerate(DROPS, start=1):
        folder = deliver(name, domain)
        (outcome,) = encoder.learn(folder, **QUIET)
        shutil.rmtree(folder)
        assert (outcome.kind, outcome.version, encoder.version) == ("learned", number, number)
    memory = EncoderFolder(encoder.folder).memory_of(2)
    assert len(memory) == 12  # the budget, shared by both steps
    assert torch.bincount(memory.steps).tolist() == [6, 6]
    health = encoder.health()
    assert 0 <= health["neighbour_overlap"] <= 1
    assert health["verdict"]
    assert encoder.encode(deliver("new", "textures", 40, 5)).shape == (5, encoder.frozen().encoder.num_features)
    assert not (encoder.folder / "learning").exists()
    page = (encoder.folder / "report.html").read_text()
    assert "week-1" in page
    assert page.count("data:image/png") >= 12


def test_vectors_beside_remembered_images_are_kept_with_them(made: Made) -> None:
    encoder = made(strategy="der")
    memory = EncoderFolder(encoder.folder).memory_of(2)
    assert len(memory) == 12
    assert memory.vectors["features"].shape == (12, encoder.frozen().encoder.num_features)
    assert memory.vectors["features"].isfinite().all()


def test_without_any_image_kept_later_drops_know_how_much_came_before(made: Made) -> None:
    encoder = made(strategy="feature_prediction")
    state = EncoderFolder(encoder.folder)
    assert len(state.memory_of(2)) == 0
    counted = []
    for version in (1, 2):
        tensors = state.load(version).tensors
        counted.append(next(float(tensors[name][0]) for name in tensors if name.endswith("statistics.norm0")))
    sizes = [step["num_images"] for step in encoder.status()["steps"]]
    assert counted[1] / counted[0] == pytest.approx(sum(sizes) / sizes[0])  # by the statistics of all drops
    learning = [row for row in read_rows(encoder.folder / STEPS / "00000002") if row["kind"] == "epoch"]
    assert learning[-1]["losses"]["predictive_distillation"] > 0


def test_images_learned_before_are_recognised_by_content(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    folder = deliver("week-1")
    encoder.learn(folder, **QUIET)
    before = {path: path.read_bytes() for path in encoder.folder.rglob("*") if path.is_file()}
    folder.rename(tmp_path / "renamed")
    (outcome,) = encoder.learn(tmp_path / "renamed", **QUIET)
    assert outcome.kind == "known"
    assert {path: path.read_bytes() for path in encoder.folder.rglob("*") if path.is_file()} == before
    mixed = deliver("mixed", first=10, count=40)  # 20 known, 20 new
    (outcome,) = encoder.learn(mixed, **QUIET)
    assert outcome.step["num_images"] == 20
    assert outcome.step["num_known"] == 20


BREAKS = [("ccl", 1), ("ccl", 4), ("ccl", 7), ("ccl", 9), ("finetuning", 4), ("simple_rehearsal", 7), ("der", 7)]


@pytest.mark.parametrize(("strategy", "broken_at"), BREAKS)
def test_broken_off_anywhere_the_same_call_goes_on_to_the_same_bits(
    made: Made,
    kept: Callable[..., Path],
    deliver: Deliver,
    monkeypatch: pytest.MonkeyPatch,
    broken_at: int,
    strategy: str,
) -> None:
    encoder = made(1, strategy)
    save, count = Session.save, 0

    def breaking(self: Session, *arguments: Any) -> None:
        nonlocal count
        self._saved_at = -1e9  # a save is due at every update
        save(self, *arguments)
        count += 1
        if count == broken_at:
            raise ConnectionResetError("pulled the plug")

    monkeypatch.setattr(Session, "save", breaking)
    with pytest.raises(ConnectionResetError):
        encoder.learn(deliver("week-2", "textures"), **QUIET)
    monkeypatch.undo()
    assert encoder.version == 1
    (outcome,) = ContinualEncoder.open(encoder.folder).learn(deliver("week-2", "textures"), **QUIET)
    assert outcome.kind == "learned"
    assert fingerprint(encoder.folder) == fingerprint(kept(2, strategy))


@pytest.mark.parametrize("moment", ["write", "save", "write_settings", "forget_learning", "prune"])
def test_broken_off_while_a_version_is_promoted(
    made: Made, kept: Callable[..., Path], deliver: Deliver, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    encoder = made(1, "ccl")
    original = getattr(EncoderFolder, moment)

    def breaking(self: EncoderFolder, *arguments: Any) -> Any:
        # From the end of the training on; pruning comes when the drop's own files are gone already.
        if read_status(self.learning).get("state") == "complete" or 2 in self.versions.numbers():
            raise ConnectionResetError("pulled the plug")
        return original(self, *arguments)

    monkeypatch.setattr(EncoderFolder, moment, breaking)
    with pytest.raises(ConnectionResetError):
        encoder.learn(deliver("week-2", "textures"), **QUIET)
    monkeypatch.undo()
    is_current = moment in ("forget_learning", "prune")  # written last: what makes the version current
    assert ContinualEncoder.open(encoder.folder).version == (2 if is_current else 1)
    ContinualEncoder.open(encoder.folder).learn(deliver("week-2", "textures"), **QUIET)
    assert fingerprint(encoder.folder) == fingerprint(kept(2, "ccl"))
    assert not (encoder.folder / "learning").exists()


def test_another_drop_waits_until_the_unfinished_one_is_done_or_given_up(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "save", _plug)
        with pytest.raises(ConnectionResetError):
            encoder.learn(deliver("week-1"), **QUIET)
    with pytest.raises(UserError, match=r"in the middle of learning 'week-1' .30 images.*--restart"):
        encoder.learn(deliver("week-2", "textures"), **QUIET)
    with pytest.raises(UserError, match=r"half learned with other settings.*weights.contrast.*--restart"):
        encoder.learn(deliver("week-1"), settings={"weights": {"contrast": 0.5}}, **QUIET)
    (outcome,) = encoder.learn(deliver("week-2", "textures"), restart=True, **QUIET)
    assert outcome.step["name"] == "week-2"


def _plug(*_: Any) -> None:
    raise ConnectionResetError("pulled the plug")


def test_a_worse_version_is_refused_and_taken_later_without_learning_again(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = tmp_path / "labelled"
    for number, domain in enumerate(("symbols", "textures")):
        shutil.copytree(deliver(f"part{number}", domain, 60, 10), labelled / domain)
    values = iter([80.0, 70.0, 70.0, 70.0])

    def measured(after: object, images: Dataset, known: dict[str, Any] | None, *_: object) -> dict[str, Any]:
        before, beside = known["linear"] if known else None, {"linear": 9.0, "knn": 9.0}
        found = {"fingerprint": images.fingerprint, "folder": "labelled", "num_test": 4, "linear": next(values)}
        found |= {"knn": 50.0, "linear_before": before, "knn_before": 50.0}
        return found | {"beside": dict.fromkeys(("start", "pixels", "hog"), beside)}

    monkeypatch.setattr(judge, "labelled_accuracy", measured)
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    encoder.learn(deliver("week-1"), probe=labelled, max_drop=5, **QUIET)
    (refused,) = encoder.learn(deliver("week-2", "textures"), probe=labelled, max_drop=5, **QUIET)
    assert (refused.kind, refused.version, encoder.version) == ("refused", 1, 1)
    assert "fell from 80.0 to 70.0 %, by 10.0 points, and 5 are allowed" in refused.message
    rows = (encoder.folder / "steps" / "00000002" / "metrics.jsonl").read_bytes()
    again = encoder.learn(deliver("week-2", "textures"), probe=labelled, max_drop=5, **QUIET)
    assert again[0].kind == "refused"
    assert [event["kind"] for event in encoder.events] == ["learned", "refused"]
    (taken,) = encoder.learn(deliver("week-2", "textures"), probe=labelled, max_drop=10, **QUIET)
    assert (taken.kind, encoder.version) == ("learned", 2)
    assert (encoder.folder / "steps" / "00000002" / "metrics.jsonl").read_bytes() == rows
    page = (encoder.folder / "report.html").read_text()
    assert "by 10.0 points" in page


def test_without_labels_the_remembered_groups_decide(made: Made, deliver: Deliver) -> None:
    encoder = made()
    before, after = encoder.health()["group_agreement"]
    encoder.rollback()
    (outcome,) = encoder.learn(deliver("week-2", "textures"), max_drop=max(before - after, 0.0) + 0.1, **QUIET)
    assert outcome.kind == "learned"
    encoder.rollback(1)
    (outcome,) = encoder.learn(deliver("week-2", "textures"), max_drop=before - after - 0.1, **QUIET)
    assert outcome.kind == "refused"
    assert "agreement of remembered images" in outcome.message


def test_rollback_forgets_and_a_pin_holds(made: Made, deliver: Deliver) -> None:
    encoder = made()
    some = deliver("some", count=3)
    rows = {number: encoder.encode(some, version=number) for number in (1, 2)}
    assert not np.allclose(rows[1], rows[2])
    assert encoder.rollback() == 1
    np.testing.assert_array_equal(encoder.encode(some), rows[1])
    (outcome,) = encoder.learn(deliver("week-2", "textures"), **QUIET)
    assert outcome.version == 3  # a number is given once
    np.testing.assert_array_equal(encoder.encode(some), rows[2])  # the same drop on the same past
    encoder.pin(1)
    np.testing.assert_array_equal(encoder.encode(some), rows[1])
    encoder.learn(deliver("week-3", "textures", 40, 20), keep_versions=1, **QUIET)
    assert encoder.versions == [1, 4]  # the pinned one and the current one
    encoder.pin(None)
    with pytest.raises(UserError, match="no version 2; there are 1, 4"):
        encoder.rollback(2)
    with pytest.raises(UserError, match="no version 7; there are 1, 4"):
        encoder.encode(some, version=7)


def test_arrays_tensors_and_endless_streams(tmp_path: Path, pictures: dict[str, list[bytes]], deliver: Deliver) -> None:
    arrays = np.stack([np.asarray(Image.open(path)) for path in sorted(deliver("a", count=48).iterdir())])
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    (outcome,) = encoder.learn(arrays[:16], name="an array", **QUIET)
    assert outcome.step["num_images"] == 16
    (outcome,) = encoder.learn(torch.from_numpy(arrays[:32]).permute(0, 3, 1, 2), **QUIET)
    assert (outcome.step["num_images"], outcome.step["num_known"]) == (16, 16)

    def stream() -> Iterator[np.ndarray]:
        yield from arrays

    assert [outcome.step["num_images"] for outcome in encoder.learn(stream(), **QUIET)] == [16]
    other = ContinualEncoder.create(tmp_path / "other", **TINY)
    outcomes = other.learn(stream(), chunk=20, **QUIET)
    assert [outcome.step["num_images"] for outcome in outcomes] == [20, 28]  # 8 are too few for a step of their own
    assert other.learn(stream(), chunk=20, **QUIET) == []


@pytest.mark.slow
def test_an_endless_stream_that_broke_off_is_cut_where_it_was(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [np.asarray(Image.open(path)) for path in sorted(deliver("a", count=60).iterdir())]
    whole = ContinualEncoder.create(tmp_path / "whole", **TINY)
    whole.learn(iter(arrays), chunk=20, **QUIET)
    broken = ContinualEncoder.create(tmp_path / "broken", **TINY)
    save, count = Session.save, 0

    def breaking(self: Session, *arguments: Any) -> None:
        nonlocal count
        count += 1
        self._saved_at = -1e9
        save(self, *arguments)
        if count == 12:
            raise ConnectionResetError

    monkeypatch.setattr(Session, "save", breaking)
    with pytest.raises(ConnectionResetError):
        broken.learn(iter(arrays), chunk=20, **QUIET)
    monkeypatch.undo()
    assert broken.version == 1
    broken.learn(iter(arrays), chunk=20, **QUIET)
    assert fingerprint(broken.folder) == fingerprint(whole.folder)


def test_bad_input_gets_a_line_and_loses_nothing(
    tmp_path: Path, made: Made, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = made()
    before = {path: path.read_bytes() for path in encoder.folder.rglob("*") if path.is_file()}
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("no image")
    for images in ("empty", "texts", "nowhere", "nothing*.png"):
        with pytest.raises(UserError) as told:
            encoder.learn(tmp_path / images, **QUIET)
        assert len(str(told.value).splitlines()) == 1
    with pytest.raises(UserError, match=r"too few new images to learn from: 1 .at least 16."):
        encoder.learn(deliver("one", "textures", 40, 1), **QUIET)
    with pytest.raises(UserError, match=r"encoder\.width"):
        encoder.learn(deliver("more", "textures", 40, 20), settings={"encoder": {"width": 8}}, **QUIET)
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        encoder.learn(deliver("more", "textures", 40, 20), settings={"epoch": 8}, **QUIET)
    with pytest.raises(UserError, match="holds no images"):
        encoder.learn(deliver("more", "textures", 40, 20), probe=tmp_path / "empty", **QUIET)
    with locked(encoder.folder, ENCODER), pytest.raises(UserError, match="is in use by"):
        encoder.learn(deliver("more", "textures", 40, 20), **QUIET)
    with pytest.raises(UserError, match="is an encoder folder already"):
        ContinualEncoder.create(encoder.folder)
    with pytest.raises(UserError, match="is not an encoder folder and not empty"):
        ContinualEncoder.create(tmp_path / "texts")
    assert {path: path.read_bytes() for path in encoder.folder.rglob("*") if path.is_file()} == before


def test_an_archive_is_learned_and_nothing_of_it_stays_outside_or_behind(tmp_path: Path, deliver: Deliver) -> None:
    folder = deliver("week-1")
    with tarfile.open(tmp_path / "week.tar.gz", "w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=f"../../outside/{path.name}")
    encoder = ContinualEncoder.create(tmp_path / "deep" / "state", **TINY)
    (outcome,) = encoder.learn(tmp_path / "week.tar.gz", **QUIET)
    assert (outcome.kind, outcome.step["num_images"]) == ("learned", 30)
    assert not list(tmp_path.rglob("outside"))
    assert not list(encoder.folder.rglob("*.png"))
    (outcome,) = encoder.learn(folder, **QUIET)
    assert outcome.kind == "known"  # the same bytes, whichever way they come


def test_a_full_disk_leaves_the_old_version_and_the_work_done(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    encoder.learn(deliver("week-1"), **QUIET)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
        with pytest.raises(DiskFullError, match=r"bytes needed, 0 free"):
            encoder.learn(deliver("week-2", "textures"), **QUIET)
    assert encoder.version == 1
    encoder.encode(deliver("some", count=3))
    (outcome,) = encoder.learn(deliver("week-2", "textures"), **QUIET)
    assert outcome.kind == "learned"


def test_folders_of_the_future_and_broken_ones_are_refused(tmp_path: Path, made: Made) -> None:
    encoder = made()
    path = encoder.folder / "ledger.json"
    path.write_bytes(seal(unseal(path.read_bytes()) | {"format": 99}))
    with pytest.raises(UserError, match="made by a newer ccl; update ccl"):
        ContinualEncoder.open(encoder.folder)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"ledger\.json is damaged"):
        ContinualEncoder.open(encoder.folder)
    with pytest.raises(UserError, match="is not an encoder folder"):
        ContinualEncoder.open(tmp_path / "nowhere")


AVERAGE, STUDENT = "registered_parts.average.average.copy.", "encoder."


def saved(folder: Path, version: int, prefix: str) -> dict[str, Tensor]:
    tensors = by_part(EncoderFolder(folder).versions.load(version).tensors)["learner"]
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def test_a_version_is_read_with_its_average(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **{**TINY, "weight_rule": "average"})
    for name, domain in (("week-1", "symbols"), ("week-2", "textures")):
        (outcome,) = encoder.learn(deliver(name, domain), **QUIET)
        assert outcome.kind == "learned"
    for version in (1, 2):
        frozen = encoder.frozen(version)
        used, average = frozen.encoder.state_dict(), saved(encoder.folder, version, AVERAGE)
        assert used.keys() == average.keys()
        assert all(torch.equal(used[name], average[name]) for name in used)
        student = saved(encoder.folder, version, STUDENT)
        assert not any(torch.equal(used[name], student[name]) for name in used if name.endswith(".weight"))
        assert not frozen.encoder.training
    exported = encoder.export(tmp_path / "encoder.safetensors")
    assert exported.format
