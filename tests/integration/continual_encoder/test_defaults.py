"""Settings chosen for images nobody has described, and for each drop its own effort."""

from pathlib import Path
from typing import Any

import pytest
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder import choose_settings
from ccl.continual_encoder.choose_settings import DropSize, changed, choose, choose_effort, refuse_mistakes
from ccl.continual_encoder.folder import EncoderFolder
from ccl.errors import UserError
from ccl.loading import read_settings
from ccl.runs.session import Session
from ccl.sealed_json import unseal
from ccl.settings import Settings


def first(num_images: int, side: int, device: str, asked: dict[str, Any]) -> tuple[Settings, list[str]]:
    """What is chosen for a first drop."""
    return choose(DropSize(num_images, side=side), None, asked, device == "cuda")


@pytest.mark.parametrize(
    ("num_images", "side", "device", "size", "resize", "stem", "width", "batch"),
    [
        (16, 16, "cpu", 16, 16, "cifar", 16, 16),
        (800, 32, "cpu", 32, 32, "cifar", 16, 64),
        (50_000, 32, "cpu", 32, 32, "cifar", 16, 128),
        (50_000, 32, "cuda", 32, 32, "cifar", 64, 256),
        (5_000, 84, "cpu", 64, 96, "imagenet", 16, 128),
        (5_000, 1080, "cpu", 64, 96, "imagenet", 16, 128),
        (5_000, 1080, "cuda", 224, None, "imagenet", 64, 256),
        (5_000, 100, "cuda", 64, 96, "imagenet", 64, 256),
    ],
)
def test_by_size_number_and_device(
    num_images: int, side: int, device: str, size: int, resize: int | None, stem: str, width: int, batch: int
) -> None:
    settings, reasons = first(num_images, side, device, {})
    assert (settings.views.size, settings.data.resize) == (size, resize)
    assert (settings.encoder.stem, settings.encoder.width, settings.batch_size) == (stem, width, batch)
    assert settings.batch_size <= num_images
    assert settings.moco_v2.queue_size <= max(64, num_images // 2)
    assert f"{side} px" in reasons[0]
    assert f"{num_images:,} images" in reasons[1]
    assert settings.device == "auto"  # a state may move to another machine


def test_larger_drops_take_fewer_epochs_within_bounds() -> None:
    epochs = [first(count, 32, "cpu", {})[0].epochs for count in (16, 1_000, 5_000, 100_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (200, 5)


def test_what_is_asked_for_wins_and_mistakes_are_told() -> None:
    settings = first(800, 32, "cpu", {"epochs": 7, "memory": {"budget": "5MB"}})[0]
    assert (settings.epochs, settings.memory.budget, settings.memory.clusters) == (7, "5MB", "estimate")
    with pytest.raises(UserError, match="did you mean"):
        refuse_mistakes({"memory": {"budgets": 3}})


def test_some_settings_hold_for_life() -> None:
    before, _ = first(800, 32, "cpu", {})
    assert changed(before, {"epochs": 3, "batch_size": 32, "memory": {"budget": 9}}).epochs == 3
    for asked in ({"encoder": {"width": 8}}, {"views": {"size": 16}}, {"strategy": "finetuning"}, {"seed": 4}):
        with pytest.raises(UserError, match="keeps these settings for life"):
            changed(before, asked)


@pytest.mark.parametrize(
    ("objective", "strategy"),
    [("moco_v2", "multi_view_rehearsal"), ("simclr", "multi_view_rehearsal"), ("byol", "balanced_rehearsal")],
)
def test_the_recipe_is_one_that_goes_with_the_objective(objective: str, strategy: str) -> None:
    settings, _ = first(1000, 32, "cpu", {"objective": objective})
    assert settings.strategy == strategy
    assert first(1000, 32, "cpu", {"objective": objective, "strategy": "finetuning"})[0].strategy == "finetuning"


def test_an_objective_s_own_network_and_optimizer_are_taken_and_named() -> None:
    settings, (seen, _) = first(1000, 32, "cpu", {"objective": "mae"})
    assert (settings.encoder.backbone, settings.encoder.width, settings.strategy) == (
        "vit_tiny",
        None,
        "balanced_rehearsal",
    )
    assert (settings.optimizer.name, settings.optimizer.learning_rate) == ("adamw", 1e-3)
    assert seen == "32 px → small images: views of 32 px, ViT-Ti"
    asked = {"objective": "mae", "optimizer": {"learning_rate": 5e-4}, "encoder": {"backbone": "vit_small"}}
    settings, _ = first(1000, 32, "cpu", asked)
    assert (settings.encoder.backbone, settings.optimizer.learning_rate) == ("vit_small", 5e-4)


@pytest.mark.parametrize("objective", ["byoll", ["byol"], 3])
def test_an_objective_that_does_not_exist_is_refused_in_words(objective: object) -> None:
    with pytest.raises(UserError, match="objective"):
        first(1000, 32, "cpu", {"objective": objective})


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
    monkeypatch.setattr(choose_settings, "choose_effort", choice)
    encoder = ContinualEncoder.create(tmp_path / "state", **{**FREE, "memory": {"clusters": 3, "budget": 12}})
    seen.clear()  # a mistake is looked for with a choice of its own
    encoder.learn(deliver("week-1"), **QUIET)
    first = read_settings(encoder.folder / "settings.yaml")
    seen[:] = seen[-1:]
    encoder.learn(deliver("week-2", "textures"), settings={"batch_size": 9}, **QUIET)
    encoder.learn(deliver("week-3", "textures", 40, 20), **QUIET)
    last = read_settings(encoder.folder / "settings.yaml")
    assert [(one.num_new, one.num_remembered, one.num_seen) for one in seen] == [(30, 0, 0), (30, 12, 30), (20, 12, 60)]
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
        now = read_settings(encoder.folder / "settings.yaml")
        assert (now.encoder.backbone, now.optimizer.name, now.optimizer.learning_rate) == ("vit_tiny", "adamw", 1e-3)


def test_a_drop_that_is_resumed_keeps_what_it_chose(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **{**FREE, "epochs": 1})
    with monkeypatch.context() as patched:
        patched.setattr(Session, "save", _plug)
        with pytest.raises(ConnectionResetError):
            encoder.learn(deliver("week-1"), settings={"temperature": 0.3}, **QUIET)
    drop = unseal((encoder.folder / "learning" / "drop.json").read_bytes())
    assert drop["asked"]["temperature"] == 0.3
    monkeypatch.setattr(choose_settings, "choose_effort", _other)  # a later ccl may choose otherwise
    (outcome,) = encoder.learn(deliver("week-1"), **QUIET)
    assert outcome.kind == "learned"
    assert EncoderFolder(encoder.folder).load(1).about["settings"] == drop["settings"]
    assert encoder._folder.load(1).about["asked"]["temperature"] == 0.3


def _plug(*_: Any) -> None:
    raise ConnectionResetError("pulled the plug")


def _other(*_: Any) -> tuple[dict[str, Any], str]:
    return {"batch_size": 8, "epochs": 7, "moco_v2": {"queue_size": 32}, "memory": {"budget": 5}}, "why"


def test_a_dry_run_says_what_it_takes_and_leaves_nothing(tmp_path: Path, deliver: Deliver) -> None:
    folder = deliver("week-1")
    encoder = ContinualEncoder(tmp_path / "state")
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


def test_too_many_bad_files_are_listed_before_they_are_refused(tmp_path: Path, deliver: Deliver) -> None:
    folder = deliver("week-1")
    for number in range(3):
        (folder / f"bad{number}.jpg").write_bytes(b"none")
    encoder = ContinualEncoder(tmp_path / "state")
    table = tmp_path / "state.bad_images.csv"
    with pytest.raises(UserError, match=rf"3 of 33 images.*all are listed in {table}; --max-bad 10 leaves them out"):
        encoder.learn(folder, settings=TINY, **QUIET)
    assert len(table.read_text().splitlines()) == 4
    assert not (tmp_path / "state").exists()
    (outcome,) = encoder.learn(folder, settings=TINY, max_bad=10, **QUIET)
    assert outcome.step["num_images"] == 30
    assert len((encoder.folder / "steps" / "00000001" / "bad_images.csv").read_text().splitlines()) == 4
