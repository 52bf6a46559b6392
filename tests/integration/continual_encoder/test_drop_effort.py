"""Each drop has its own effort: bounds by hand, over the drops of a folder, and kept for a drop that is resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder import defaults
from ccl.continual_encoder.defaults import DropSize, choose_effort
from ccl.continual_encoder.folder import EncoderFolder
from ccl.errors import UserError
from ccl.runs.session import Session

QUIET: dict[str, Any] = {"progress": False}
# Nothing that a drop chooses for itself.
FREE = {name: value for name, value in TINY.items() if name not in ("epochs", "batch_size", "moco_v2")}
FREE["memory"] = {"clusters": 3}


def effort(*size: int, **asked: Any) -> tuple[int, int, int, int]:
    values, _ = choose_effort(DropSize(*size), False, asked)
    return values["batch_size"], values["epochs"], values["moco_v2"]["queue_size"], values["memory"]["budget"]


def test_by_hand() -> None:
    assert effort(20) == (16, 200, 64, 100)
    assert effort(800) == (64, 160, 256, 100)
    assert effort(20_000) == (128, 13, 4096, 1_000)
    assert effort(100_000) == (128, 5, 4096, 2_000)  # at most 2,000 images are kept by default
    assert effort(800, 200, 19_200) == (64, 128, 256, 1_000)  # 5 % of all 20,000
    assert effort(800, batch_size=8)[:2] == (8, 20)


def test_a_small_first_drop_fixes_nothing_for_large_ones_nor_the_other_way_round() -> None:
    for small, large in [((20,), (20_000, 20, 20)), ((20, 1_000, 20_000), (20_000,))]:
        batch, epochs, _, _ = effort(*small)
        updates = epochs * sum(small[:2]) / batch
        assert 250 <= updates <= 2_100  # 20 images alone can't have more: 200 epochs
        assert effort(*large)[1] * sum(large[:2]) <= 300_000  # passes: half an hour at 200 images/s


def test_the_learning_rate_follows_the_batch() -> None:
    values, _ = choose_effort(DropSize(800), False, {"batch_size": 32})
    assert values["optimizer"]["learning_rate"] == 0.015
    assert choose_effort(DropSize(50_000), True, {})[0]["optimizer"]["learning_rate"] == 0.12


def test_drops_of_a_folder_choose_anew_and_what_was_asked_for_stays(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choice(size: DropSize, is_gpu: bool, asked: Any, adapts: bool = False) -> tuple[dict[str, Any], str]:
        seen.append(size)
        count = len({*seen})  # a first drop asks once more, for the side alone
        return {"batch_size": 10 + count, "epochs": count, "moco_v2": {"queue_size": 8 * 2**count}}, "why"

    seen: list[DropSize] = []
    monkeypatch.setattr(defaults, "choose_effort", choice)
    encoder = ContinualEncoder.create(tmp_path / "state", **{**FREE, "memory": {"clusters": 3, "budget": 12}})
    seen.clear()  # a mistake is looked for with a choice of its own
    encoder.learn(deliver("week-1"), **QUIET)
    first = EncoderFolder(encoder.folder).settings()
    seen[:] = seen[-1:]
    encoder.learn(deliver("week-2", "textures"), settings={"batch_size": 9}, **QUIET)
    encoder.learn(deliver("week-3", "textures", 40, 20), **QUIET)
    last = EncoderFolder(encoder.folder).settings()
    assert first is not None
    assert last is not None
    assert [(one.num_new, one.num_remembered, one.num_seen) for one in seen] == [
        (30, 0, 0),
        (30, 12, 30),
        (20, 12, 60),
    ]
    assert (first.batch_size, last.batch_size) == (first.epochs + 10, 9)  # asked for once, it stays
    assert last.epochs == 3
    assert last.moco_v2.queue_size == 64 > first.moco_v2.queue_size  # it has grown
    about = encoder._folder.load(3).about
    assert about["asked"]["batch_size"] == 9
    assert about["asked"]["memory"]["budget"] == 12
    encoder.rollback(1)
    (outcome,) = encoder.learn(deliver("week-3", "textures", 40, 20), **QUIET)  # a shorter queue is lengthened
    assert outcome.kind == "learned"


def test_later_drops_keep_the_rate_of_an_objective_that_brings_its_optimizer(tmp_path: Path, deliver: Deliver) -> None:
    asked = {**FREE, "epochs": 1, "objective": "mae", "encoder": {"width": 8, "dim": 8}}
    encoder = ContinualEncoder.create(tmp_path / "state", **asked)
    for week, domain in (("week-1", "symbols"), ("week-2", "textures")):
        (outcome,) = encoder.learn(deliver(week, domain), **QUIET)
        assert outcome.kind == "learned"
        now = EncoderFolder(encoder.folder).settings()
        assert now is not None
        assert (now.encoder.backbone, now.optimizer.name, now.optimizer.learning_rate) == ("vit_tiny", "adamw", 1e-3)


def test_a_drop_that_is_resumed_keeps_what_it_chose(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **{**FREE, "epochs": 1})
    with monkeypatch.context() as patched:
        patched.setattr(Session, "save", _plug)
        with pytest.raises(ConnectionResetError):
            encoder.learn(deliver("week-1"), settings={"temperature": 0.3}, **QUIET)
    before = EncoderFolder(encoder.folder).settings()
    drop = json.loads((encoder.folder / "learning" / "drop.json").read_text())
    assert drop["asked"]["temperature"] == 0.3
    monkeypatch.setattr(defaults, "choose_effort", _other)  # a later ccl may choose otherwise
    (outcome,) = encoder.learn(deliver("week-1"), **QUIET)
    assert outcome.kind == "learned"
    assert EncoderFolder(encoder.folder).settings() == before
    assert encoder._folder.load(1).about["asked"]["temperature"] == 0.3


def _plug(*_: Any) -> None:
    raise ConnectionResetError("pulled the plug")


def _other(*_: Any) -> tuple[dict[str, Any], str]:
    return {"batch_size": 8, "epochs": 7, "moco_v2": {"queue_size": 32}, "memory": {"budget": 5}}, "why"


def test_a_dry_run_says_what_it_takes_and_leaves_nothing(tmp_path: Path, deliver: Deliver) -> None:
    folder = deliver("week-1")
    encoder = ContinualEncoder(EncoderFolder(tmp_path / "state"))
    (outcome,) = encoder.learn(folder, settings=TINY, dry_run=True, **QUIET)
    assert outcome.kind == "planned"
    lines = dict(line.split(maxsplit=1) for line in outcome.message.splitlines())
    assert list(lines) == ["drop", "time", "memory", "disk"]
    assert lines["drop"] == "30 new images, 2 epochs in batches of 12"
    assert "seconds here, at" in lines["time"]
    assert not (tmp_path / "state").exists()


def test_options_are_checked_also_where_nothing_is_new(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    encoder.learn(deliver("week-1"), **QUIET)
    for wrong, told in [
        ({"settings": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"settings": {"encoder": {"width": 8}}}, "keeps these settings for life"),
        ({"settings": {"moco_v2": {"queue_size": 8}}}, "keeps these settings for life"),  # it may only grow
        ({"probe": tmp_path / "nowhere"}, "is not a folder"),
        ({"probe": tmp_path / "week-1"}, "needs a folder for each of two classes"),
    ]:
        with pytest.raises(UserError, match=told):
            encoder.learn(deliver("week-1"), **wrong, **QUIET)
    assert encoder.learn(deliver("week-1"), **QUIET)[0].kind == "known"


def test_the_line_says_how_many_were_kept_of_how_many(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    encoder.learn(deliver("week-1"), **QUIET)
    (outcome,) = encoder.learn(deliver("week-2", "textures"), **QUIET)
    memory = encoder._folder.memory_of(2)
    size = sum(map(len, memory.files)) / 1e6
    assert f"Kept 6 of its 30 images (12 of 60 in all, {size:.1f} MB); the others are not needed" in outcome.message


def test_too_many_bad_files_are_listed_before_they_are_refused(tmp_path: Path, deliver: Deliver) -> None:
    folder = deliver("week-1")
    for number in range(3):
        (folder / f"bad{number}.jpg").write_bytes(b"none")
    encoder = ContinualEncoder(EncoderFolder(tmp_path / "state"))
    table = tmp_path / "state.bad_images.csv"
    with pytest.raises(UserError, match=rf"3 of 33 images.*all are listed in {table}; --max-bad 10 leaves them out"):
        encoder.learn(folder, settings=TINY, **QUIET)
    assert len(table.read_text().splitlines()) == 4
    assert not (tmp_path / "state").exists()
    (outcome,) = encoder.learn(folder, settings=TINY, max_bad=10, **QUIET)
    assert outcome.step["num_images"] == 30
