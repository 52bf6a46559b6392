"""What is written is on the disk before it has its name; an error at any call leaves a whole file and nothing else."""

import csv
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from disk_calls import hear_of_disk_calls

from ccl import atomic_files
from ccl.atomic_files import (
    append,
    beside,
    discard,
    make_folder,
    remove,
    replacing,
    write_csv,
    write_file,
    write_folder,
)
from ccl.errors import UserError

Call = tuple[str, str, int]  # what was called, on which name, how many bytes were there


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every fsync and rename from now on, in order."""
    made: list[Call] = []
    hear_of_disk_calls(monkeypatch, lambda kind, path, size: made.append((kind, path.name, size)))
    return made


def _by_context(path: Path, content: str) -> None:
    with replacing(path) as unfinished:
        assert unfinished.suffix == path.suffix  # np.savez and others look at it
        unfinished.write_text(content, encoding="utf-8")


WRITERS: list[Callable[[Path, str], None]] = [
    write_file,
    lambda path, content: write_file(path, content.encode()),
    _by_context,
]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_is_synced_before_its_rename_and_its_folder_after(
    tmp_path: Path, calls: list[Call], write: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "a.json"
    write(path, "old")
    calls.clear()
    write(path, "new content")
    assert [(kind, size) for kind, _, size in calls] == [("fsync", 11), ("replace", 11), ("fsync", 0)]
    assert [name for _, name, _ in calls[1:]] == ["a.json", tmp_path.name]
    assert path.read_text() == "new content"
    assert os.listdir(tmp_path) == ["a.json"]


def _fail_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """The `number`-th fsync or rename raises; a list of those that were asked for."""
    made: list[str] = []

    def note(kind: str, path: Path, size: int) -> None:
        made.append(kind)
        if len(made) == number:
            raise OSError(5, "Input/output error")

    hear_of_disk_calls(monkeypatch, note)
    return made


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("number", "expected"), [(1, "old"), (2, "old"), (3, "new"), (4, "new")])
def test_a_failure_at_any_call_leaves_a_whole_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None], number: int, expected: str
) -> None:
    write(tmp_path / "a.json", "old")
    made = _fail_at(monkeypatch, number)
    if number < 4:
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path / "a.json", "new")
        assert len(made) == number  # nothing is tried after a failure
    else:
        write(tmp_path / "a.json", "new")
        assert len(made) == 3
    assert (tmp_path / "a.json").read_text() == expected
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "x.txt"
    write_file(path, "first")
    with pytest.raises(error), replacing(path) as unfinished:  # noqa: PT012
        unfinished.write_text("half of the sec")
        raise error
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_nothing_is_written_where_the_writer_wrote_nothing(tmp_path: Path) -> None:
    write_file(tmp_path / "x.txt", "first")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "x.txt"):
        pass
    assert (tmp_path / "x.txt").read_text() == "first"


def test_missing_folders_are_made_and_synced_into_those_above(tmp_path: Path, calls: list[Call]) -> None:
    write_file(tmp_path / "a" / "b" / "c.txt", "x")
    assert [name for kind, name, _ in calls if kind == "fsync"][:2] == [tmp_path.name, "a"]
    assert [name for _, name, _ in calls[-2:]] == ["c.txt", "b"]
    calls.clear()
    make_folder(tmp_path / "a" / "b")
    assert calls == []
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        write_file(tmp_path / "a" / "b" / "c.txt" / "d" / "e.txt", "x")


def test_text_that_is_no_utf8_is_still_written(tmp_path: Path) -> None:
    write_file(tmp_path / "a.txt", "ü \udcff")
    assert (tmp_path / "a.txt").read_bytes() == "ü ?".encode()


FULL = [
    (lambda path: write_file(path, b"x" * 9000), 9000),
    (lambda path: append(path, b"x" * 9000), 9000),
    (lambda path: write_folder(path.with_name("7"), {"a": b"x" * 9000}, path.with_name(".saving-7")), 9000),
    (lambda path: _by_context(path, "x" * 9000), 0),  # as much as was written
]


@pytest.mark.parametrize(("write", "needed"), FULL)
def test_a_full_disk_is_said_with_the_file_and_the_bytes(
    tmp_path: Path, write: Callable[[Path], None], needed: int
) -> None:
    (tmp_path / "a.json").write_bytes(b"old" * 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UserError, match=rf"{tmp_path}.*no room.*at least \d+ bytes needed, \d+ free") as caught:
            write(tmp_path / "a.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(caught.value, OSError)  # for who can do without the file
    assert f" {needed} bytes" in str(caught.value) or not needed
    assert (tmp_path / "a.json").read_bytes() == b"old" * 1000
    assert os.listdir(tmp_path) == ["a.json"]


FILES = {"first.bin": b"1" * 10, "second.bin": b"2" * 20}


def test_a_folder_is_synced_file_by_file_before_its_rename(tmp_path: Path, calls: list[Call]) -> None:
    write_folder(tmp_path / "7", FILES, tmp_path / ".saving-7")
    assert calls == [
        ("fsync", "first.bin", 10),
        ("fsync", "second.bin", 20),
        ("fsync", ".saving-7", 0),
        ("replace", "7", 0),
        ("fsync", tmp_path.name, 0),
    ]
    assert {path.name: path.read_bytes() for path in (tmp_path / "7").iterdir()} == FILES
    assert os.listdir(tmp_path) == ["7"]


@pytest.mark.parametrize("number", range(1, 6))
def test_a_failure_at_any_call_leaves_a_whole_folder_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / ".saving-7").mkdir()
    (tmp_path / ".saving-7" / "left over.bin").write_bytes(b"of a killed process")
    _fail_at(monkeypatch, number)
    with pytest.raises(OSError, match="Input/output error"):
        write_folder(tmp_path / "7", FILES, tmp_path / ".saving-7")
    assert os.listdir(tmp_path) == (["7"] if number == 5 else [])
    if number == 5:
        assert sorted(os.listdir(tmp_path / "7")) == sorted(FILES)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_a_killed_process_left_goes_at_the_next_write_beside_it(tmp_path: Path, is_folder: bool) -> None:
    def make(path: Path) -> Path:
        path.mkdir() if is_folder else path.touch()
        return path

    living = make(beside(tmp_path / "a.json"))
    own = f"-{os.getpid()}-"
    dead = make(living.with_name(living.name.replace(own, "-99999999-")))
    elsewhere = make(living.with_name(".b.0123abcd-1-0123abcd.part.csv"))
    write_file(tmp_path / "c.txt", "x")
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists()
    os.utime(elsewhere, (0, 0))
    write_folder(tmp_path / "d", FILES, tmp_path / ".saving-7")
    assert living.exists()
    assert not elsewhere.exists()


def test_a_folder_is_discarded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a" / "b" / "c.txt", "x")
    monkeypatch.setattr(atomic_files, "remove", _fail_to_remove)
    with pytest.raises(InterruptedError):
        discard(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    discard(tmp_path / "a")  # which is absent


def _fail_to_remove(path: Path) -> None:
    raise InterruptedError


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to("kept")
    for name in ("link", "kept/file", "absent", "kept"):
        remove(tmp_path / name)
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / "kept").is_dir() == (name != "kept")


def test_a_table_keeps_names_that_are_hard_to_write(tmp_path: Path) -> None:
    write_csv(tmp_path / "p.csv", ["path", "class"], [["x\r.png", 'a "class"'], ["y.png", "b\udcff"]])
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["path", "class"], ["x\r.png", 'a "class"'], ["y.png", "b\\udcff"]]


def test_a_table_is_never_half_written(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ["name"], [["kept"]])
    with pytest.raises(ZeroDivisionError):
        write_csv(tmp_path / "t.csv", ["name"], ([1 // number] for number in (1, 0)))
    assert "kept" in (tmp_path / "t.csv").read_text()
    assert os.listdir(tmp_path) == ["t.csv"]
