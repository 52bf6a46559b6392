"""Files of an unchanged folder are decoded once, not at each start of a run."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_shards import labelled_tars
from PIL import Image

from ccl.data import FileSource, ImageSource, load_dataset
from ccl.data.shards import ShardSource
from ccl.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CCL_CACHE", str(tmp_path / "cache"))
    for number in range(24):
        path = tmp_path / "images" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 6, 3), number, np.uint8)).save(path)
        os.utime(path, (1e9, 1e9))
    (tmp_path / "images" / "05.png").write_bytes(b"not an image")
    os.utime(tmp_path / "images" / "05.png", (1e9, 1e9))
    return tmp_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read."""
    names: list[str] = []
    real = FileSource.encoded

    def encoded(self: FileSource, position: int) -> bytes:
        names.append(Path(self.names[position]).name)
        return real(self, position)

    monkeypatch.setattr(FileSource, "encoded", encoded)
    return names


def ids_and_names(source: ImageSource) -> list[tuple[int, str]]:
    return [(int(source.ids[at]), Path(source.name(at)).name) for at in range(len(source))]


def test_only_what_was_unusable_is_opened_again(folder: Path, opened: list[str]) -> None:
    first = load_dataset("folder:images", folder)
    assert len(opened) == 24
    opened.clear()
    second = load_dataset("folder:images", folder)
    assert opened == ["05.png"]
    assert ids_and_names(first.train) == ids_and_names(second.train)
    assert (first.skipped, first.fingerprint) == (second.skipped, second.fingerprint)
    assert len(first.skipped) == 1
    with pytest.raises(UserError, match="1 of 24"):
        load_dataset("folder:images", folder, max_bad=1.0)


def test_an_unusable_file_that_can_be_read_again_is_back(
    folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_dataset("folder:images", folder)
    Image.new("RGB", (6, 6)).save(good := folder / "good.png")
    real = FileSource.encoded  # as after a disk's error that is over: neither size nor time have changed
    monkeypatch.setattr(
        FileSource,
        "encoded",
        lambda self, at: good.read_bytes() if self.names[at].endswith("05.png") else real(self, at),
    )
    found = load_dataset("folder:images", folder)
    assert len(found.train) == 24
    assert not found.skipped


@pytest.mark.parametrize("change", ["content", "time", "moved", "young", "damaged"])
def test_any_change_decodes_all_again(folder: Path, opened: list[str], change: str) -> None:
    path = folder / "images" / "07.png"
    if change == "young":
        os.utime(path)
    load_dataset("folder:images", folder)
    opened.clear()
    if change == "content":
        path.write_bytes(path.read_bytes() + b" ")
        os.utime(path, (1e9, 1e9))
    elif change == "time":
        os.utime(path, (1e9 + 1, 1e9 + 1))
    elif change == "moved":
        shutil.move(folder / "images", folder / "others")
    elif change == "damaged":
        [kept] = (folder / "cache" / "unusable").iterdir()
        kept.write_text("[99]")
    load_dataset("folder:others" if change == "moved" else "folder:images", folder)
    assert len(opened) == 24


def test_nothing_is_kept_of_arrays_or_where_nothing_can_be_written(folder: Path, opened: list[str]) -> None:
    load_dataset("symbols", images_per_class=2)
    assert not (folder / "cache").exists()
    (folder / "cache").write_text("a file")
    for _ in range(2):
        load_dataset("folder:images", folder)
    assert len(opened) == 48


def test_records_of_shards_are_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in labelled_tars(folder / "shards"):
        os.utime(path, (1e9, 1e9))
    first = load_dataset("shards:shards", folder)
    monkeypatch.setattr(ShardSource, "encoded", lambda self, position: pytest.fail("it is read again"))
    assert load_dataset("shards:shards", folder).fingerprint == first.fingerprint
