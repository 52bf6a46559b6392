"""A file is decoded for its check once in its life, and again when anything about it changes."""

import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccl.data import BadImageError, Dataset, FileSource, decoding, load_dataset
from ccl.data.decode_cache import FILE_NAME, cache_folder
from ccl.data.decoding import decode

LONG_AGO = 1_600_000_000_000_000_000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _settle(path: Path, at: int = LONG_AGO) -> None:
    os.utime(path, ns=(at, at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty sound pictures and a bad one with an odd name, all of them old."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(40):
        Image.new("RGB", (3, 3), (number, 0, 0)).save(folder / f"{number:02}.png")
    (folder / os.fsdecode(b"bad \xff\n.png")).write_bytes(b"no picture")
    for path in folder.iterdir():
        _settle(path)
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are opened; nothing else than the decoder needs them here."""
    names: list[str] = []
    read = FileSource.encoded

    def spied(source: FileSource, position: int) -> bytes:
        names.append(os.path.basename(source.names[position]))
        return read(source, position)

    monkeypatch.setattr(FileSource, "encoded", spied)
    return names


def _told(dataset: Dataset) -> object:
    return dataset.skipped, dataset.fingerprint, dataset.train.ids.tolist(), dataset.notes


def test_an_unchanged_folder_is_not_decoded_again(folder: Path, cache: Path, decoded: list[str]) -> None:
    heard: list[tuple[int, int]] = []
    first = load_dataset("folder", folder)
    assert len(decoded) == 41
    assert len(first.skipped) == 1
    decoded.clear()
    again = load_dataset("folder", folder, progress=lambda *now: heard.append(now))
    assert decoded == []
    assert _told(again) == _told(first)
    assert heard == [(number, 41) for number in range(1, 42)]
    assert (cache / FILE_NAME).is_file()


def _grow(path: Path) -> None:
    Image.new("RGB", (9, 9)).save(path)
    _settle(path)


def _rot(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    _settle(path, LONG_AGO + 1)


def _touch(path: Path) -> None:
    _settle(path, LONG_AGO + 1)


@pytest.mark.parametrize("change", [_grow, _rot, _touch])
def test_only_what_changed_is_decoded_again(
    folder: Path, cache: Path, decoded: list[str], change: Callable[[Path], None]
) -> None:
    load_dataset("folder", folder)
    decoded.clear()
    change(folder / "07.png")
    _settle(folder / "08.png", LONG_AGO)  # to the same time: unchanged
    dataset = load_dataset("folder", folder)
    assert decoded == ["07.png"]
    assert len(dataset.skipped) == (2 if change is _rot else 1)


def test_a_moved_folder_and_another_judge_are_strangers(
    folder: Path, cache: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_dataset("folder", folder)
    moved = folder.rename(folder.with_name("moved"))
    decoded.clear()
    load_dataset("folder", moved)
    assert len(decoded) == 41
    decoded.clear()
    monkeypatch.chdir(moved.parent)
    load_dataset("folder:moved", ".")
    assert decoded == []  # a relative name is no other file
    monkeypatch.setattr(decoding, "MAX_PIXELS", 8)
    with pytest.raises(Exception, match="41 of 41 images can't be decoded"):
        load_dataset("folder", moved)


def test_a_young_file_is_not_remembered(folder: Path, cache: Path, decoded: list[str]) -> None:
    (folder / "07.png").touch()
    load_dataset("folder", folder)
    decoded.clear()
    load_dataset("folder", folder)
    assert decoded == ["07.png"]  # a second change within the clock's tick could not be seen


@pytest.mark.parametrize("damage", ["zeros", "text", "middle"])
def test_a_damaged_cache_is_passed_over_with_a_line_and_made_anew(
    folder: Path, cache: Path, decoded: list[str], damage: str
) -> None:
    sound = load_dataset("folder", folder)
    file = cache / FILE_NAME
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(
        {
            "zeros": bytes(len(content)),
            "text": b"hello",
            "middle": content[: half // 2] + b"\xff" * half + content[half + half // 2 :],
        }[damage]
    )
    decoded.clear()
    found = load_dataset("folder", folder)
    assert len(decoded) == 41
    assert found.skipped == sound.skipped
    assert len(found.notes) == 1
    assert str(file) in found.notes[0]
    assert "\n" not in found.notes[0]
    assert load_dataset("folder", folder).notes == ()
    decoded.clear()
    load_dataset("folder", folder)
    assert decoded == []


def test_a_cache_that_cant_be_written_or_is_locked_stops_nothing(folder: Path, cache: Path, decoded: list[str]) -> None:
    cache.write_text("a file where the folder should be")
    assert "can't be used" in load_dataset("folder", folder).notes[0]
    cache.unlink()
    cache.mkdir()
    sqlite3.connect(cache / FILE_NAME).execute("CREATE TABLE decoded (something_else)").connection.close()
    assert "can't be used" in load_dataset("folder", folder).notes[0]
    assert (cache / FILE_NAME).is_file()  # another program's, perhaps


def test_a_pass_that_is_stopped_resumes_where_it_was(
    folder: Path, cache: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl.data.ingest.CHUNK", 10)

    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 25:
            raise StoppedError

    with pytest.raises(StoppedError):
        load_dataset("folder", folder, progress=stop)
    first = len(decoded)
    assert 25 <= first <= 30
    load_dataset("folder", folder)
    assert len(decoded) == 41


def test_arrays_need_no_cache(cache: Path) -> None:
    load_dataset("digits")
    assert not cache.exists()


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("CCL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cached")
    assert cache_folder() == Path("/cached/ccl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "ccl"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_reduced_decoding_refuses_what_a_full_one_refuses(options: dict[str, object]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (41, 53, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    whole = buffer.getvalue()

    def is_sound(content: bytes, divisor: int) -> bool:
        try:
            decode(io.BytesIO(content), lambda width, height: divisor)
        except BadImageError:
            return False
        return True

    judged = [(is_sound(whole[:end], 8), is_sound(whole[:end], 1)) for end in range(0, len(whole) + 1, 7)]
    judged += [(is_sound(whole[:end], 8), is_sound(whole[:end], 1)) for end in range(len(whole) - 40, len(whole) + 1)]
    assert all(reduced == full for reduced, full in judged)
    assert judged[0] == (False, False)
    assert judged[-1] == (True, True)
