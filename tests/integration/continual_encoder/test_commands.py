"""The commands of an encoder folder, as a user meets them: files, exit codes, one clear line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from drops import TINY, Deliver

from ccl.continual_encoder.feature_files import read_features
from ccl.continual_encoder.folder import EncoderFolder

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def one_bad(labelled: Path) -> Path:
    """A file among the labelled ones that is no image; 1 of 21."""
    bad = labelled / "kiwi" / "99.png"
    bad.write_text("<html>")
    return bad


def test_encode_leaves_features_and_a_list_of_bad_images(
    command: Command, labelled: Path, one_bad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "f.npz"
    code, told, error = command("encode", tmp_path, labelled, "-o", out, "--version", 5)
    assert (code, error) == (0, "")
    assert "1 left out as not usable" in told
    assert f"20 images, 32 features each, read by version 5: {out}" in told
    found = read_features(out)
    assert (len(found.rows), found.version, found.about["version"]) == (20, 5, 5)
    with (out.parent / "f.npz.bad_images.csv").open(newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["path", str(one_bad)]
    one_bad.unlink()
    assert command("encode", tmp_path, labelled, "-o", out)[0] == 0
    assert list(out.parent.iterdir()) == [out]  # the list of an earlier time is gone


def test_probe_then_predict(command: Command, labelled: Path, tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "p.csv"
    code, told, error = command("probe", state, labelled)
    assert (code, error) == (0, "")
    assert "version 3, 2 classes, fitted on 16 images; on 4 held-out images: linear 100.0 %" in told
    assert "every 5th image of each class" in told
    assert (state / "classifiers" / "fruit-v3.safetensors").is_file()
    (labelled / "kiwi" / "99.png").write_text("<html>")
    code, told, error = command("predict", state, labelled, "-o", out)
    assert (code, error) == (0, "")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert all(row["class"] in row["path"] and 0.5 < float(row["confidence"]) <= 1 for row in rows)
    assert (tmp_path / "p.csv.bad_images.csv").is_file()
    foreign = ["predict", state, labelled, "-o", tmp_path / "q.csv", "--version", 4]
    assert "was fitted on version 3" in command(*foreign, "--any-version")[1]  # the newest of another version
    (tmp_path / "q.csv").unlink()
    code, _, error = command(*foreign)
    assert code == 2
    assert "no classifier for version 4, only for others (fruit-v3.safetensors); make one: ccl probe" in error
    foreign += ["--classifier", state / "classifiers" / "fruit-v3.safetensors"]
    code, _, error = command(*foreign)
    assert code == 2
    assert "version 3, and this is version 4" in error
    assert not (tmp_path / "q.csv").exists()
    assert command(*foreign, "--any-version")[0] == 0
    assert (tmp_path / "q.csv").is_file()


def test_search_in_images_and_in_features(command: Command, labelled: Path, tmp_path: Path) -> None:
    query = labelled / "apple" / "03.png"
    code, told, error = command("search", tmp_path, query, labelled, "-k", 4, "-o", tmp_path / "s.html")
    assert (code, error) == (0, "")
    assert f"the sheet to look at: {tmp_path / 's.html'}" in told
    page = (tmp_path / "s.html").read_text()
    assert page.count("<li>") == 4
    assert page.count('<span class="value">nearer than ') == 4
    assert page.count("kiwi") == 0
    assert command("encode", tmp_path, labelled, "-o", tmp_path / "f.npz")[0] == 0
    stored = ["search", tmp_path, query, "-f", tmp_path / "f.npz", "-k", 4, "-o"]
    assert command(*stored, tmp_path / "t.html")[0] == 0
    assert (tmp_path / "t.html").read_text() == page
    code, _, error = command(*stored, tmp_path / "u.html", "--version", 4)
    assert code == 2
    assert "was made with version 3, and this is version 4" in error
    (labelled / "apple" / "03.png").rename(tmp_path / "elsewhere.png")
    code, told, _ = command("search", tmp_path, tmp_path / "elsewhere.png", *stored[3:], tmp_path / "v.html")
    assert code == 0
    assert "1 image can't be found where" in told


def test_export_and_its_card(command: Command, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "encoder.safetensors"
    code, told, error = command("export", tmp_path, "-o", out, "--images", labelled)
    assert (code, error) == (0, "")
    assert "at most 0.0e+00 from the original's on 20 images" in told
    assert "# Encoder, version 3" in (tmp_path / "encoder.safetensors.card.md").read_text()
    assert "on 32 images" in command("export", tmp_path, "-o", out)[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["encode", ".", "fruit", "-o", "f.h5"], "a file of features is written as .npz, .csv, .parquet"),
        (["encode", ".", "fruit", "-o", "fruit/apple/00.png/f.npz"], "can't write"),
        (["probe", ".", "absent"], "absent is not a folder"),
        (["probe", ".", "fruit", "-o", "c.pkl"], "a classifier is written as .safetensors"),
        (["probe", ".", "fruit/apple"], "apple has no labels"),
        (["predict", ".", "fruit", "-o", "p.json"], "a table of predictions is written as .csv"),
        (["predict", ".", "fruit", "-o", "p.csv"], "has no classifier for version 3; make one"),
        (["search", ".", "fruit", "-o", "s.html"], "either IMAGES or --features"),
        (["search", ".", "fruit", "fruit", "-o", "s.pdf"], "a contact sheet is written as .html"),
        (["search", ".", "fruit", "-f", "fruit/apple/00.png", "-o", "s.html"], "is not a file of features"),
        (["export", ".", "-o", "e.pth"], "an encoder is written as .safetensors, .pt2, .onnx"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    command: Command, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, _, error = command(*arguments)
    assert code == 2
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def assignments(values: dict[str, object], prefix: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += assignments(value, f"{prefix}{key}.")
        else:
            found += ["--set", f"{prefix}{key}={value}"]
    return found


def test_a_state_from_its_first_drop_to_a_rollback(
    shell: Command, deliver: Deliver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    state = tmp_path / "state"
    code, told, error = shell("learn", deliver("week-1"), "--into", state, *assignments(TINY))
    assert (code, error) == (0, "")
    assert "16 px → small images" in told
    assert "as asked: epochs=2" in told
    assert "version 1: first" in told
    code, told, _ = shell("learn", deliver("week-2", "textures"), "--into", state, "--memory", "8", "--name", "second")
    assert code == 0
    assert "second: step 2 of 2, 30 new images and 12 remembered" in told
    assert "neighbours kept" in told
    assert shell("learn", deliver("week-2", "textures"), "--into", state)[1].startswith("· all 30 images were learned")
    code, told, _ = shell("status", state)
    assert "version 2 is current, 60 images learned in 2 drops" in told
    assert "second" in told
    about = json.loads(shell("status", state, "--json")[1])
    assert (about["current"], about["pinned"], about["versions"]) == (2, None, [1, 2])
    assert about["steps"][1]["num_remembered"] == 8
    assert shell("pin", state, "2")[1] == "version 2 is pinned\n"
    assert shell("rollback", state)[1] == "version 1 is current again\n"
    assert json.loads(shell("status", state, "--json")[1])["pinned"] == 2
    assert shell("pin", state)[1].startswith("version 2 is pinned; ")  # asked, not changed
    assert json.loads(shell("status", state, "--json")[1])["pinned"] == 2
    assert "nothing is pinned" in shell("pin", state, "--off")[1]
    code, told, _ = shell("encode", state, deliver("some", count=4), "-o", tmp_path / "features.npz")
    assert (code, "read by version 1" in told) == (0, True)


def test_a_refused_version_is_told_and_leaves_by_exit_code_3(shell: Command, deliver: Deliver, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shell("learn", deliver("week-1"), "--into", state, *assignments(TINY))
    code, told, _ = shell("learn", deliver("week-2", "textures"), "--into", state, "--max-drop", "0")
    before, after = EncoderFolder(state).ledger().events[-1]["health"]["group_agreement"]
    assert code == (3 if after < before else 0)
    assert ("not promoted" in told) == (after < before)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "epoch=3"], "unknown setting 'epoch'; did you mean 'epochs'?"),
        (["--memory", "much"], "memory.budget: 'much' is not a size"),
        (["--memory", "0"], "memory.budget: Input should be greater than or equal to 1, got 0"),
        (["--set", "strategy=cccl"], "did you mean 'ccl'?"),
        (["--probe", "nowhere", *assignments(TINY)], "--probe nowhere is not a folder"),
    ],
)
def test_mistakes_are_told_in_a_line_and_leave_no_state(
    shell: Command, deliver: Deliver, tmp_path: Path, arguments: list[str], told: str
) -> None:
    code, _, error = shell("learn", deliver("week-1"), "--into", tmp_path / "state", *arguments)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert told in error
    assert not (tmp_path / "state").exists()


def test_verify_finds_a_flipped_bit_and_what_is_missing(shell: Command, deliver: Deliver, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shell("learn", deliver("week-1"), "--into", state, *assignments(TINY))
    code, told, _ = shell("verify", state)
    assert (code, told.splitlines()[-1]) == (0, "all is well")
    assert "good      version 1: 1 drops" in told
    (state / "steps" / "00000001" / "metrics.jsonl").unlink()
    assert shell("verify", state)[0] == 1
    weights = state / "versions" / "00000001" / "state.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, told, _ = shell("verify", state)
    assert (code, "SHA-256" in told) == (1, True)


@pytest.mark.parametrize("command", ["status", "rollback", "pin"])
def test_what_is_no_state_is_refused(shell: Command, tmp_path: Path, command: str) -> None:
    code, _, error = shell(command, tmp_path)
    assert code == 2
    assert "is not an encoder folder: it has no ledger.json" in error
