"""`ccl learn`, `status`, `rollback` and `pin` as a user meets them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from drops import TINY, Deliver

Command = Callable[..., tuple[int, str, str]]


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


def test_a_refused_version_is_told_and_leaves_by_exit_code_1(shell: Command, deliver: Deliver, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shell("learn", deliver("week-1"), "--into", state, *assignments(TINY))
    path = state / "state.json"
    code, told, _ = shell("learn", deliver("week-2", "textures"), "--into", state, "--max-drop", "0")
    before, after = json.loads(path.read_text())["events"][-1]["health"]["group_agreement"]
    assert code == (1 if after < before else 0)
    assert ("not promoted" in told) == (after < before)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "epoch=3"], "unknown setting 'epoch'; did you mean 'epochs'?"),
        (["--memory", "much"], "--memory takes a number of images, such as 500, or a size, such as 50MB; got 'much'"),
        (["--memory", "0"], "--memory takes a number of images, such as 500, or a size, such as 50MB; got '0'"),
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
    assert "version 1: good, 1 drops" in told
    (state / "seen" / "00000001.bin").unlink()
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
    assert "is not an encoder folder: it has no state.json" in error
