"""C4, S4: what makes a version current comes last to the disk; where one is damaged, the way back is named."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from disk_calls import hear_of_disk_calls
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.ledger import BEFORE, LEDGER, Ledger
from ccl.errors import UserError
from ccl.training.checkpoint import DamagedError


def test_a_version_is_on_the_disk_before_it_is_current(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    made: list[tuple[str, str]] = []
    hear_of_disk_calls(monkeypatch, lambda kind, path, _: made.append((kind, os.path.relpath(path, encoder.folder))))
    encoder.learn(deliver("week-1"), progress=False)
    current = max(at for at, call in enumerate(made) if call == ("replace", LEDGER))
    assert made[current - 1][0] == "fsync"
    assert made[current - 1][1].startswith(".ledger.")  # the file itself, still aside
    assert made[current + 1] == ("fsync", ".")
    before = made[:current]
    for folder, name in (("versions", "00000001"), (".", "settings.yaml")):
        path = os.path.normpath(os.path.join(folder, name))
        renamed = max(at for at, call in enumerate(before) if call == ("replace", path))
        assert ("fsync", folder) in before[renamed:]  # its name is on the disk
    assert ("fsync", f"versions/.saving-{os.getpid()}-1/state.safetensors") in before


@pytest.mark.parametrize("last", range(1, 8))
@pytest.mark.parametrize("is_killed", [False, True])
def test_before_each_call_the_old_version_is_current_and_after_the_rename_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, is_killed: bool
) -> None:
    state = EncoderFolder(tmp_path)
    state.write(Ledger(current=1, latest=1))

    def interrupted() -> None:
        made = []

        def stop(kind: str, path: Path, size: int) -> None:
            made.append(kind)
            if len(made) == last:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            hear_of_disk_calls(patch, stop)
            state.write(Ledger(current=2, latest=2))

    if is_killed:
        pid = os.fork()
        if pid == 0:
            interrupted()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == (-signal.SIGKILL if last < 7 else 0)
    elif last < 7:
        with pytest.raises(OSError, match="No space left"):
            interrupted()
        assert sorted(os.listdir(tmp_path)) == [BEFORE, LEDGER][last < 3 :]
    else:
        interrupted()
    assert state.ledger().current == (1 if last <= 5 else 2)  # twice: sync the file, rename it, sync the folder
    state.write(Ledger(current=3, latest=3))
    assert state.ledger().current == 3


Command = Callable[..., tuple[int, str, str]]
KEPT = Path(__file__).parent / "kept_folder"  # two drops learned, a third one begun: made on 19 November 2026


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two versions, both good."""
    shutil.copytree(KEPT, tmp_path / "state", ignore=shutil.ignore_patterns("learning"))
    return tmp_path / "state"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_one_flipped_bit_and_the_way_back(shell: Command, deliver: Deliver, state: Path, file: str) -> None:
    flip(state / "versions" / "00000002" / file)
    way = f"version 1 is the newest good one: `ccl rollback {state}` returns to it"
    code, told, error = shell("status", state)
    assert (code, error) == (1, "")
    assert f"version 2, the current one, is damaged: {state / 'versions' / '00000002' / file}" in told
    assert way in told
    assert "version 1 is the newest good one, 30 images learned in 1 drop" in told
    now = json.loads(shell("status", state, "--json")[1])
    assert (now["current"], now["newest_good"], len(now["steps"]), way in now["damage"]) == (2, 1, 1, True)
    code, _, error = shell("learn", deliver("week-3", "textures", 40, 20), "--into", state)
    assert (code, way in error, len(error.splitlines())) == (2, True, 1)
    code, _, error = shell("encode", state, deliver("some", count=3), "-o", state.parent / "f.npz")
    assert (code, way in error) == (2, True)
    assert shell("rollback", state)[:2] == (0, "version 1 is current again\n")
    assert shell("status", state)[0] == 0


def test_a_damaged_version_that_is_pinned_names_the_pin(state: Path) -> None:
    encoder = ContinualEncoder.open(state)
    encoder.pin(1)
    flip(state / "versions" / "00000001" / "state.safetensors")
    with pytest.raises(DamagedError, match=rf"version 2 is the newest good one: `ccl pin {state} 2` pins it instead"):
        encoder.frozen()
    encoder.pin(2)
    assert encoder.frozen().version == 2


def test_where_nothing_is_good_that_is_said(state: Path) -> None:
    for number in (1, 2):
        flip(state / "versions" / f"{number:08d}" / "state.safetensors")
    encoder = ContinualEncoder.open(state)
    with pytest.raises(DamagedError, match="no other version is good: learn the images anew into another folder"):
        encoder.frozen()
    with pytest.raises(UserError, match="has no older good version to roll back to; there are 1, 2"):
        encoder.rollback()
    with pytest.raises(DamagedError):
        encoder.rollback(1)
    assert (encoder.version, encoder.status()["newest_good"]) == (2, None)


def test_a_rollback_without_a_number_follows_what_the_current_one_was_learned_on(tmp_path: Path) -> None:
    ledger = Ledger(current=5, latest=5)
    for kind, version in [("learned", 1), ("learned", 2), ("rolled back", 1), ("learned", 3), ("refused", 0)]:
        ledger.record(kind, version=version)
    for kind, version in [("pinned", 2), ("learned", 4), ("rolled back", 3), ("learned", 5)]:
        ledger.record(kind, version=version)
    assert ledger.ancestors == [3, 1, 0]
    ledger.current = 4
    assert ledger.ancestors == [3, 1, 0]
    ledger.current = 2
    assert ledger.ancestors == [1, 0]
    assert Ledger().ancestors == []


def test_a_folder_kept_from_before_opens_is_used_and_its_drop_resumes(tmp_path: Path, deliver: Deliver) -> None:
    shutil.copytree(KEPT, tmp_path / "state")
    encoder, some = ContinualEncoder.open(tmp_path / "state"), deliver("some", "textures", 40, 3)
    assert np.isclose(encoder.encode(some).sum(), 33.403984, atol=1e-4)  # as the ccl that made it had it
    assert (encoder.status()["damage"], encoder.status()["learning"]) == (None, "failed")
    assert sum(step["num_images"] for step in encoder.status()["steps"]) == 60
    with pytest.raises(UserError, match="in the middle of learning 'week-3'"):
        encoder.learn(deliver("week-4", "textures", 60, 20), progress=False)
    (outcome,) = encoder.learn(deliver("week-3", "textures", 40, 20), progress=False)
    assert (outcome.kind, outcome.step["num_remembered"]) == ("learned", 8)
    assert np.isclose(encoder.encode(some).sum(), 32.77901, atol=1e-4)
