"""I1 to I4: nothing that decides is believed unchecked, nothing is deleted on the word of one file, the gate holds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import unreadable
from drops import TINY, Deliver

from ccl import ContinualEncoder, UserError
from ccl.continual_encoder import judge, learn_drop
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.ledger import BEFORE, LEDGER, UNSEALED
from ccl.continual_encoder.probe_classifiers import load_classifier
from ccl.data import load_dataset
from ccl.sealed_json import seal, unseal
from ccl.training import Learner

QUIET: dict[str, Any] = {"progress": False}
KEPT = Path(__file__).parent / "kept_folder"  # of format 1
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions; copied before use."""
    folder = tmp_path_factory.mktemp("three") / "encoder"
    encoder = ContinualEncoder.create(folder, **TINY)
    for name in ("symbols", "textures", "digits"):
        encoder.learn(load_dataset(name, images_per_class=3, resize=16).train.images, **QUIET)
    return folder


@pytest.fixture
def folder(three: Path, tmp_path: Path) -> Path:
    return shutil.copytree(three, tmp_path / "encoder")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def states(told: str) -> set[str]:
    return {line.split()[0] for line in told.splitlines()[:-1]}


def flipped(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.99])
def test_one_bit_of_the_ledger_is_found_and_mended(
    shell: Command, deliver: Deliver, folder: Path, share: float
) -> None:
    whole = (folder / LEDGER).read_bytes()
    flipped(folder / LEDGER, int(share * len(whole)))
    before = files(folder)
    for command in (("learn", deliver("more"), "--into", folder), ("status", folder), ("rollback", folder)):
        code, _, error = shell(*command)
        assert (code, len(error.splitlines())) == (2, 1)
        assert f"ccl verify {folder} --repair" in error
    assert files(folder) == before
    assert shell("verify", folder)[0] == 1
    assert files(folder) == before
    code, told, _ = shell("verify", folder, "--repair")
    assert (code, states(told)) == (0, {"good", "mended"})
    assert unseal((folder / LEDGER).read_bytes())["hashes"] == unseal(whole)["hashes"]
    assert ContinualEncoder.open(folder).version == 3
    assert states(shell("verify", folder)[1]) == {"good"}


def test_a_ledger_is_rebuilt_from_the_versions_alone(shell: Command, folder: Path) -> None:
    before = EncoderFolder(folder).ledger()
    for name in (LEDGER, BEFORE):
        (folder / name).unlink()
    with pytest.raises(UserError, match=r"ledger.json is missing; nothing was changed"):
        ContinualEncoder.open(folder)
    assert shell("verify", folder, "--repair")[0] == 0
    after = EncoderFolder(folder).ledger()
    assert (after.current, after.identity, after.hashes) == (3, before.identity, before.hashes)
    assert [event["version"] for event in after.events] == [1, 2, 3]
    assert ContinualEncoder.open(folder).rollback() == 2


def test_a_rebuilt_ledger_knows_on_which_version_each_was_learned(
    shell: Command, deliver: Deliver, folder: Path
) -> None:
    encoder = ContinualEncoder.open(folder)
    encoder.rollback(1)
    encoder.learn(deliver("more"), **QUIET)
    before = EncoderFolder(folder).ledger()
    for name in (LEDGER, BEFORE):
        (folder / name).unlink()
    assert shell("verify", folder, "--repair")[0] == 0
    after = EncoderFolder(folder).ledger()
    assert (after.current, after.ancestors) == (before.current, before.ancestors) == (4, [1, 0])


def test_an_old_ledger_that_is_put_back_deletes_nothing(folder: Path, deliver: Deliver) -> None:
    shutil.copy(folder / BEFORE, folder / LEDGER)  # whole, and it knows two versions
    encoder = ContinualEncoder.open(folder)
    assert (encoder.version, encoder.versions) == (2, [1, 2])
    (outcome,) = encoder.learn(deliver("more"), **QUIET)
    assert (outcome.version, (folder / "versions" / "00000003").is_dir()) == (4, True)


@pytest.mark.parametrize("with_ledger", [True, False])
def test_a_version_of_another_encoder_is_refused_by_name(
    tmp_path: Path, shell: Command, deliver: Deliver, folder: Path, with_ledger: bool
) -> None:
    other = ContinualEncoder.create(tmp_path / "other", **(TINY | {"seed": 1}))
    for name in ("week-1", "week-2", "week-3"):
        other.learn(deliver(name, first=16 * int(name[-1]), count=16), **QUIET)
    shutil.rmtree(folder / "versions" / "00000003")
    shutil.copytree(other.folder / "versions" / "00000003", folder / "versions" / "00000003")
    if with_ledger:
        with pytest.raises(
            UserError, match=r"not the version 3 that was learned in this folder; version 2 is the newest"
        ):
            ContinualEncoder.open(folder).frozen()
        assert "lost      version 3" in shell("verify", folder)[1]
    else:
        for name in (LEDGER, BEFORE):
            (folder / name).unlink()
        shell("verify", folder, "--repair")
        assert ContinualEncoder.open(folder).version == 2


def test_a_version_is_read_with_its_own_settings(shell: Command, deliver: Deliver, folder: Path) -> None:
    some, encoder = deliver("some", count=3), ContinualEncoder.open(folder)
    rows, path = encoder.encode(some), folder / "settings.yaml"
    path.write_text(path.read_text().replace("resize: 16", "resize: 17"))
    np.testing.assert_array_equal(encoder.encode(some), rows)
    told = shell("encode", folder, some, "-o", folder.parent / "f.npz")[1]
    assert "settings.yaml says data.resize 17, version 3 16; that is used" in told
    assert "mendable  settings.yaml" in shell("verify", folder)[1]
    assert "mended    settings.yaml" in shell("verify", folder, "--repair")[1]
    assert "resize: 16" in path.read_text()


def test_the_copy_of_the_settings_follows_the_current_version(shell: Command, deliver: Deliver, folder: Path) -> None:
    encoder, before = ContinualEncoder.open(folder), (folder / "settings.yaml").read_text()
    encoder.learn(deliver("more"), settings={"temperature": 0.3}, **QUIET)
    assert "temperature: 0.3" in (folder / "settings.yaml").read_text()
    encoder.rollback()
    assert (folder / "settings.yaml").read_text() == before
    assert states(shell("verify", folder)[1]) == {"good"}


def test_a_folder_of_format_1_is_sealed_when_it_is_written(tmp_path: Path, deliver: Deliver) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "old", ignore=shutil.ignore_patterns("learning"))
    encoder = ContinualEncoder.open(folder)
    assert (encoder.version, (folder / LEDGER).exists()) == (2, False)
    encoder.pin(1)
    assert ((folder / LEDGER).exists(), (folder / UNSEALED).exists()) == (True, False)
    ledger = EncoderFolder(folder).ledger()
    assert sorted(ledger.hashes) == [1, 2]
    assert all(ledger.hashes.values())
    encoder.pin(None)
    (outcome,) = encoder.learn(deliver("week-1"), **QUIET)  # what version 1 has seen lies in the folder's own file
    assert outcome.kind == "known"


@pytest.mark.parametrize(
    "damage",
    [
        *({"latest": 0}, {"current": 9}, {"current": "2"}, {"pinned": []}, {"events": [3]}, {"asked": None}),
        *({"events": [{"kind": "learned"}]}, {"created": "now"}, {"format": "1"}, {"format": None}, {"other": 1}),
        {"hashes": {"a": 1}},
    ],
)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_wrong_types_in_a_ledger_are_one_line(tmp_path: Path, damage: dict[str, Any], is_sealed: bool) -> None:
    content = json.loads((KEPT / UNSEALED).read_text()) | damage
    (tmp_path / (LEDGER if is_sealed else UNSEALED)).write_bytes(
        seal(content) if is_sealed else json.dumps(content).encode()
    )
    with pytest.raises(UserError, match="is damaged") as caught:
        EncoderFolder(tmp_path).ledger()
    assert len(str(caught.value).splitlines()) == 1


def test_settings_of_a_drop_that_failed_are_forgotten(
    folder: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, drop = ContinualEncoder.open(folder), deliver("more")
    before = (folder / "settings.yaml").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(learn_drop._Drop, "_train", _fail)
        with pytest.raises(ConnectionResetError):
            encoder.learn(drop, settings={"temperature": 0.9}, **QUIET)
    assert (folder / "settings.yaml").read_text() == before
    (outcome,) = encoder.learn(drop, restart=True, **QUIET)
    version = EncoderFolder(folder).load(outcome.version)
    assert version.about["settings"]["temperature"] != 0.9


def test_an_emptied_mark_of_a_drop_is_damage_and_a_restart_forgets_it(folder: Path, deliver: Deliver) -> None:
    encoder, drop = ContinualEncoder.open(folder), deliver("more")
    (mark := folder / "learning" / "drop.json").parent.mkdir()
    mark.touch()
    with pytest.raises(UserError, match=r"drop.json is damaged .*--restart forgets the unfinished drop"):
        encoder.learn(drop, **QUIET)
    assert mark.exists()
    assert encoder.learn(drop, restart=True, **QUIET)[0].kind == "learned"
    assert not mark.parent.exists()


def test_checkpoints_of_a_drop_whose_mark_is_missing_stay(folder: Path, deliver: Deliver) -> None:
    kept = folder / "learning" / "checkpoints" / "00000001"
    kept.mkdir(parents=True)
    with pytest.raises(UserError, match=r"drop.json is missing; --restart forgets the unfinished drop"):
        ContinualEncoder.open(folder).learn(deliver("more"), **QUIET)
    assert kept.is_dir()


def test_weights_that_do_not_fit_their_settings_are_refused_in_a_line(folder: Path) -> None:
    encoder = EncoderFolder(folder)
    version, ledger = encoder.load(3), encoder.ledger()
    about = json.loads(json.dumps(version.about))
    about["settings"]["encoder"]["width"] = 8
    encoder.versions.remove(3)
    encoder.versions.save(version.tensors, about, version.files, 3)
    ledger.hashes[3] = encoder.versions.describe(3)[1]
    encoder.write(ledger)
    with pytest.raises(
        UserError, match=r"the weights of this version do not fit its settings \(.*; use another"
    ) as caught:
        ContinualEncoder.open(folder).frozen()
    assert "\n" not in str(caught.value)


def test_a_drop_of_another_folder_is_refused(shell: Command, folder: Path, deliver: Deliver) -> None:
    drop = folder / "learning" / "drop.json"
    drop.parent.mkdir()
    which = {"fingerprint": "0", "parent": 3, "num_images": 30, "name": "other", "version": 4}
    drop.write_bytes(seal({**which, "folder": "another", "settings": {}}))
    code, _, error = shell("learn", deliver("more"), "--into", folder)
    assert (code, "it is of another encoder folder" in error, drop.exists()) == (2, True, True)
    assert "lost      learning/" in shell("verify", folder)[1]


@pytest.mark.parametrize("name", ["report.html", "versions/00000003/manifest.json", "steps/00000001/metrics.jsonl"])
def test_what_can_not_be_read_is_not_called_damaged(shell: Command, folder: Path, name: str) -> None:
    with unreadable(folder / name):
        code, told, _ = shell("verify", folder)
    assert (code, "can't be read: Permission denied" in told) == (1, True)
    assert not any(word in told for word in ("damaged", "rollback", "--repair"))


def _fail(*_: Any) -> None:
    raise ConnectionResetError("pulled the plug")


@pytest.mark.parametrize("number", range(6))
def test_a_bit_of_a_classifier_is_found(deliver: Deliver, folder: Path, labelled: Path, number: int) -> None:
    ContinualEncoder.open(folder).probe(labelled)
    (path,) = (folder / "classifiers").glob("*.safetensors")
    size = path.stat().st_size
    flipped(path, size - 1 - number * (size // 3) // 6, number)
    with pytest.raises(UserError, match="is not a classifier"):
        load_classifier(path)


# The gate


def _spoiled(learner: Learner, what: str, value: float) -> None:
    chosen = [one for name, one in learner.state_dict().items() if name.startswith("encoder.") and what in name]
    for tensor in [one for one in chosen if one.is_floating_point()][0 if value == 0.0 else -1 :]:
        tensor[(slice(None) if np.isfinite(value) else 0, ...) if tensor.ndim else ...] = value


DAMAGE = [
    ("backbone", np.nan),
    ("backbone", np.inf),
    ("head", np.nan),
    ("head", -np.inf),
    ("running_mean", np.nan),
    ("running_var", np.inf),
    ("running_var", -1.0),
    ("head", 0.0),
    ("backbone", 0.0),
    ("weight", 1e38),
]


@pytest.mark.parametrize(("what", "value"), DAMAGE)
@pytest.mark.parametrize("is_first", [False, True])
def test_damage_does_not_become_current(
    folder: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch, what: str, value: float, is_first: bool
) -> None:
    def trained(drop: Any, settings: Any, learner: Learner, *others: Any) -> list[str]:
        found: list[str] = original(drop, settings, learner, *others)
        _spoiled(learner, what, value)
        return found

    original = learn_drop._Drop._train
    monkeypatch.setattr(learn_drop._Drop, "_train", trained)
    if is_first:
        folder = folder.with_name("first")
        ContinualEncoder.create(folder, **TINY)
    encoder = ContinualEncoder.open(folder)
    before = encoder.version
    (outcome,) = encoder.learn(deliver("more"), **QUIET)
    assert (outcome.kind, encoder.version) == ("refused", before)
    assert encoder.status()["candidates"] == [before + 1]


KINDS = ("symbols", "textures", "digits", "greek", "capitals", "noise", "frames", "dark", "two kinds", "shifted")


@pytest.mark.parametrize("kind", KINDS)
def test_honest_drops_are_not_refused(tmp_path: Path, kind: str) -> None:
    draws = np.random.default_rng(0)
    base = draws.integers(0, 255, (1, 3, 16, 16))
    made = {
        "noise": draws.integers(0, 256, (30, 3, 16, 16)),
        "frames": (base + draws.integers(-3, 4, (30, 3, 16, 16))).clip(0, 255),  # nearly the same, as of a camera
        "dark": draws.integers(0, 8, (30, 3, 16, 16)),
        "two kinds": np.concatenate(
            [draws.integers(0, 60, (15, 3, 16, 16)), draws.integers(200, 256, (15, 3, 16, 16))]
        ),
        "shifted": np.concatenate([np.roll(base, shift, axis=3) for shift in range(16)]),
    }
    images = made.get(kind)
    if images is None:
        images = load_dataset(kind, images_per_class=3, resize=16).train.images.numpy()
    encoder = ContinualEncoder.create(tmp_path / "encoder", **(TINY | {"epochs": 5}))
    (outcome,) = encoder.learn(images.astype(np.uint8), **QUIET)
    assert (outcome.kind, outcome.step["faults"]) == ("learned", [])


def test_a_candidate_is_looked_at_and_promoted_by_hand(
    shell: Command, deliver: Deliver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, some = deliver("more"), deliver("some", count=3)
    with monkeypatch.context() as patch:
        patch.setattr(judge, "faults", lambda *_: ["collapsed: planted"])
        code, told, _ = shell("learn", more, "--into", folder)
    assert code == 3
    assert "version 4 is not promoted: collapsed: planted; it stays as candidate 4" in told
    assert f"ccl promote {folder} 4" in shell("status", folder)[1]
    assert "collapsed: planted" in (folder / "report.html").read_text()
    encoder = ContinualEncoder.open(folder)
    assert (encoder.version, encoder.encode(some, version=4).shape[0]) == (3, 3)
    told = shell("encode", folder, some, "--version", 4, "-o", folder.parent / "f.npz")[1]
    assert "warning: version 4: collapsed: planted" in told
    assert shell("learn", more, "--into", folder)[0] == 3  # nothing is learned again, and nothing has changed
    assert encoder.versions == [1, 2, 3, 4]
    assert shell("verify", folder)[0] == 0
    assert shell("promote", folder)[:2] == (0, "version 4 is current\n")
    assert encoder.rollback() == 3
    assert shell("promote", folder)[0] == 2


def test_a_damaged_candidate_is_learned_again(deliver: Deliver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, more = ContinualEncoder.open(folder), deliver("more")
    with monkeypatch.context() as patch:
        patch.setattr(judge, "faults", lambda *_: ["collapsed: planted"])
        encoder.learn(more, **QUIET)
    flipped(folder / "versions" / "00000004" / "manifest.json", 100)
    (outcome,) = encoder.learn(more, **QUIET)
    assert (outcome.kind, outcome.version) == ("learned", 5)


def test_a_rate_that_spoils_everything_is_refused_in_time(deliver: Deliver, tmp_path: Path) -> None:
    encoder = ContinualEncoder.create(tmp_path / "encoder", **TINY)
    encoder.learn(deliver("week-1"), **QUIET)
    huge = {"optimizer": {"learning_rate": 1e38}, "batch_size": 64, "epochs": 1}
    (outcome,) = encoder.learn(deliver("week-2", "textures"), settings=huge, **QUIET)
    assert (outcome.kind, encoder.version) == ("refused", 1)
    with pytest.raises(UserError, match="version 2 makes nan or infinity of these images"):
        encoder.encode(deliver("some", count=3), version=2)


def test_collapse_in_the_middle_ends_the_drop(deliver: Deliver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    original = judge.CollapseWatch.epoch_ends

    def collapsing(watch: Any, step: int, epoch: int, rate: float) -> None:
        epochs.append(epoch)
        if epoch == 24:
            with torch.no_grad():
                watch._learner.product.head[-1].weight.zero_()
        original(watch, step, epoch, rate)

    monkeypatch.setattr(judge.CollapseWatch, "epoch_ends", collapsing)
    (outcome,) = ContinualEncoder.open(folder).learn(deliver("more"), settings={"epochs": 32}, **QUIET)
    assert (outcome.kind, epochs) == ("refused", list(range(25)))
    assert "stopped after epoch 25 of 32" in outcome.message
