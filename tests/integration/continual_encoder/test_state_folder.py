"""C4: the file that makes a version current is on the disk before it does, and after all that it names."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder.folder import LEDGER, EncoderFolder, Ledger


def _calls(monkeypatch: pytest.MonkeyPatch, note: Callable[[str, Path], None]) -> None:
    """`note` hears of every fsync (of which path) and rename (to which path) before it is made."""
    fsync, rename = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        note("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def noted_replace(old: Path, new: Path) -> None:
        note("replace", Path(new).absolute())
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)


def test_a_version_is_on_the_disk_before_it_is_current(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    made: list[tuple[str, str]] = []
    _calls(monkeypatch, lambda kind, path: made.append((kind, os.path.relpath(path, encoder.folder))))
    encoder.learn(deliver("week-1"), progress=False)
    current = max(at for at, call in enumerate(made) if call == ("replace", LEDGER))
    assert made[current - 1][0] == "fsync"
    assert made[current - 1][1].startswith(".state.")  # the file itself, still aside
    assert made[current + 1] == ("fsync", ".")
    before = made[:current]
    for folder, name in (("versions", "00000001"), ("seen", "00000001.bin"), (".", "settings.yaml")):
        path = os.path.normpath(os.path.join(folder, name))
        renamed = max(at for at, call in enumerate(before) if call == ("replace", path))
        assert ("fsync", folder) in before[renamed:]  # its name is on the disk
    assert ("fsync", f"versions/.saving-{os.getpid()}-1/state.safetensors") in before


@pytest.mark.parametrize("last", [1, 2, 3, 4])
@pytest.mark.parametrize("is_killed", [False, True])
def test_before_each_call_the_old_version_is_current_and_after_the_rename_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, is_killed: bool
) -> None:
    state = EncoderFolder(tmp_path)
    state.write(Ledger(current=1, latest=1))

    def interrupted() -> None:
        made = []

        def stop(kind: str, path: Path) -> None:
            made.append(kind)
            if len(made) == last:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            _calls(patch, stop)
            state.write(Ledger(current=2, latest=2))

    if is_killed:
        pid = os.fork()
        if pid == 0:
            interrupted()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == (-signal.SIGKILL if last < 4 else 0)
    elif last < 4:
        with pytest.raises(OSError, match="No space left"):
            interrupted()
        assert os.listdir(tmp_path) == [LEDGER]
    else:
        interrupted()
    assert state.ledger().current == (1 if last <= 2 else 2)  # the calls: sync the file, rename it, sync the folder
    state.write(Ledger(current=3, latest=3))
    assert state.ledger().current == 3
