"""A run folder can't lie: its rows are their checkpoint's, its checkpoints its own, its files as they were left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from breaking import assert_same, listening, quiet, run_broken_once
from tiny import tiny_settings

from ccl import read_run, run
from ccl.errors import UserError
from ccl.runs.folder_lock import locked, read_status, shown_status
from ccl.runs.jobs import Job
from ccl.runs.run_folder import METRICS, SMALL, RunLog, find_runs, is_finished, read_rows
from ccl.sealed_json import seal

SETTINGS = tiny_settings("strategy=ccl", "checkpoint.minutes=1e-9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(SETTINGS, folder, quiet())
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run_broken_once(SETTINGS, folder)
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copy"))


def flipped(content: bytes, bit: int) -> bytes:
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


SPOILED = {
    "shorter": lambda rows: rows[: len(rows) // 2],
    "nothing": lambda rows: b"",
    "NULs": lambda rows: rows[:300] + bytes(len(rows) - 300),
    "longer": lambda rows: rows + rows[:777],
    "other": lambda rows: flipped(rows, 2000),
}


@pytest.mark.parametrize("how", SPOILED)
def test_rows_are_those_of_the_checkpoint_whatever_became_of_their_file(
    stopped: Path, whole: Path, copied: Callable[[Path], Path], how: str
) -> None:
    folder = copied(stopped)
    (folder / METRICS).write_bytes(SPOILED[how]((folder / METRICS).read_bytes()))
    run(SETTINGS, folder, quiet())
    assert_same(whole, folder)


def test_of_a_checkpoint_of_before_whole_rows_are_kept_and_what_is_lost_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunLog, "small_files", lambda self: {})
    run_broken_once(SETTINGS, tmp_path)
    rows = (tmp_path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(rows[: rows.index(b"\n", 400) + 30])
    kept = rows[: rows.index(b"\n", 400) + 1].count(b"\n")
    display, notes = listening()
    record = run(SETTINGS, tmp_path, display)
    assert any(note.endswith(f"its rows after the first {kept} are lost") for note in notes)
    assert b"\0" not in (tmp_path / METRICS).read_bytes()
    assert len(record.rows) > kept


def test_checkpoints_of_another_run_are_refused_by_what_differs(tmp_path: Path) -> None:
    for seed in (0, 1):
        run_broken_once(tiny_settings("strategy=ccl", f"seed={seed}", f"data.workers={seed}"), tmp_path / str(seed))
    shutil.rmtree(tmp_path / "0" / "checkpoints")
    shutil.copytree(tmp_path / "1" / "checkpoints", tmp_path / "0" / "checkpoints")
    before = (tmp_path / "0" / METRICS).read_bytes()
    with pytest.raises(UserError, match=r"checkpoints/0000\d+ is of another run \(seed: 1 instead of 0\)"):
        run(tiny_settings("strategy=ccl"), tmp_path / "0", quiet())
    assert (tmp_path / "0" / METRICS).read_bytes() == before


def test_no_bit_of_the_status_makes_a_complete_run_learn_anew(whole: Path, copied: Callable[[Path], Path]) -> None:
    folder = copied(whole)
    content = (folder / "status.json").read_bytes()
    for bit in range(0, 8 * len(content), 13):
        (folder / "status.json").write_bytes(flipped(content, bit))
        with pytest.raises(UserError, match=r"status\.json is damaged .* `ccl verify .* --repair`"):
            is_finished(SETTINGS, folder)
    assert shown_status(folder) == {"state": "unknown"}


@pytest.mark.parametrize("name", [*SMALL, "status.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "removed", "unreadable", "swapped"])
def test_a_complete_run_is_believed_only_as_it_was_left(
    whole: Path, stopped: Path, copied: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    folder = copied(whole)
    path = folder / name
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "unreadable":  # tests may run as root
        real = Path.read_bytes

        def refuse(self: Path) -> bytes:
            if self == path:
                raise PermissionError(13, "Permission denied")
            return real(self)

        monkeypatch.setattr(Path, "read_bytes", refuse)
    else:
        other = (stopped / name).read_bytes().replace(b"seed: 0", b"seed: 1").replace(b'"seed": 0', b'"seed": 1')
        spoiled = {"flipped": flipped(content, 500), "cut": content[:-64], "emptied": b"", "swapped": other}
        path.write_bytes(spoiled[how])
    uses = [read_run, lambda folder: is_finished(SETTINGS, folder)]
    if how == "swapped" and name == "status.json":  # by that of this run when it was half done: resumed, not believed
        name = METRICS
        assert not uses.pop()(folder)
    for use in uses:
        with pytest.raises(UserError, match=name) as caught:
            use(folder)
        assert "\n" not in str(caught.value)
        assert how != "unreadable" or ("can't" in str(caught.value) and "damaged" not in str(caught.value))


def test_a_killed_run_is_not_said_to_be_running(stopped: Path, copied: Callable[[Path], Path]) -> None:
    folder = copied(stopped)
    (folder / "status.json").write_bytes(seal(read_status(folder) | {"state": "running", "files": {}}))
    assert read_run(folder).status["state"] == "stopped (killed)"
    (folder / "drop").mkdir()
    (folder / "drop" / "status.json").write_text('{"state": "running"}')
    assert shown_status(folder / "drop", folder)["state"] == "stopped (killed)"
    with locked(folder):
        assert read_run(folder).status["state"] == "running"
        assert shown_status(folder / "drop", folder)["state"] == "running"


def test_a_run_that_lost_its_status_is_not_passed_over_by_a_report(whole: Path, copied: Callable[[Path], Path]) -> None:
    folder = copied(whole)
    (folder / "status.json").unlink()
    assert find_runs([folder.parent]) == [folder]
    with pytest.raises(UserError, match=r"has no status\.json"):
        read_run(folder)


LONG = "[" * 100_000
TYPES = [
    ("status.json", '{"state": 5}', "state"),
    ("status.json", '{"state": "complete", "stored_bytes": {"images": []}}', "stored_bytes.images"),
    ("status.json", "[]", "status"),
    ("status.json", LONG, "status"),
    ("status.json", '{"state": "complete", "pid": %s}' % ("9" * 5000), "status"),
    ("protocol.json", "[]", "protocol"),
    ("protocol.json", '{"dataset": "x", "steps": [1, 2]}', "steps.0"),
    ("protocol.json", '{"dataset": "x", "steps": [{"name": "a", "num_images": 1e999}]}', "num_images"),
    ("protocol.json", '{"dataset": "x", "steps": [{"name": "a"}], "backbone": 3}', "backbone"),
    ("protocol.json", LONG, "protocol"),
    ("accuracy.csv", "after,data,probe,accuracy\n1,999999999,per_step,1\n", "steps in 1 lines"),
    ("accuracy.csv", "after,data,probe,accuracy\n1," + "9" * 200_000 + ",per_step,1\n", "accuracy.csv"),
    ("accuracy.csv", "after,data,probe,accuracy\n1,1,per_step,1\n", "it is of 1 step, the run has 2"),
    (METRICS, "[]\n", "line 1: not a whole row"),
    (METRICS, '{"kind": "epoch", "step": 1, "epoch": "x", "losses": {}}\n', "epoch: Input should be a valid integer"),
    (METRICS, '{"kind": "epoch", "step": 1, "epoch": 1}\n', "losses"),
    (METRICS, '{"kind": "step"}\n{"kind": "ste', "line 2: not a whole row"),
    (METRICS, '{"kind": "step"}\n' + "\0" * 50, "line 2: not a whole row"),
    (METRICS, LONG + "\n", "line 1"),
]


@pytest.mark.parametrize(("name", "content", "named"), TYPES, ids=lambda value: value[:40])
def test_wrong_types_are_one_line(
    whole: Path, copied: Callable[[Path], Path], name: str, content: str, named: str
) -> None:
    folder = copied(whole)
    left = read_status(folder)
    del left["files"]  # as a run of before
    (folder / "status.json").write_text(json.dumps(left))
    assert read_run(folder).status["state"] == "complete"
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=named) as caught:
        read_run(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert 0 <= Job("a", folder, folder, folder).share_done(2) <= 1


def test_a_damaged_row_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"kind": "step"}\n{"kind": "step"\0\n{"kind": "step"}\n')
    with pytest.raises(UserError, match=rf"{METRICS}, line 2: not a whole row"):
        read_rows(tmp_path)
