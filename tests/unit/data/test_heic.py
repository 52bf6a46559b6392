"""Photographs as phones save them: read where the package is there, else left out with the line that helps."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image, ImageFile

from ccl.data import TooManyBadError, decoding, gather
from ccl.errors import UserError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


class FakeHeif(ImageFile.ImageFile):
    """A reader as the package registers one: whatever begins as HEIC is a red picture."""

    format = "HEIF"

    def _open(self) -> None:
        self._size, self._mode, self.tile = (30, 20), "RGB", []

    def load(self) -> object:
        self.im = Image.new("RGB", self.size, "red").im
        return super().load()


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    decoding.can_read_heif.cache_clear()
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "IMG_1.HEIC").write_bytes(HEIC)
    (folder / "IMG_2.jpg").write_bytes(HEIC)  # phones rename too
    for number in range(3):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(folder / f"{number}.png")
    yield folder
    decoding.can_read_heif.cache_clear()


def test_without_the_package_they_are_left_out_with_advice_until_it_is_there(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(TooManyBadError, match=r"2 of 5 images.*HEIC.*pip install '.\[heic\]'") as refused:
        gather([photos], tmp_path)
    assert [Path(bad.path).name for bad in refused.value.bad] == ["IMG_1.HEIC", "IMG_2.jpg"]
    assert len(gather([photos], tmp_path, max_bad=40).source) == 3
    register = lambda: Image.register_open("HEIF", FakeHeif, lambda start: start[4:8] == b"ftyp")  # noqa: E731
    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    decoding.can_read_heif.cache_clear()
    try:
        found = gather([photos], tmp_path)  # nothing remembers that they could not be read
        assert (len(found.source), found.skipped) == (5, ())
        position = [Path(name).name for name in found.names].index("IMG_1.HEIC")
        assert found.source.picture(position).getpixel((3, 3)) == (255, 0, 0)
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        decoding.can_read_heif.cache_clear()
        assert len(gather([photos], tmp_path, max_bad=40).source) == 3  # nor that they could
    finally:
        Image.OPEN.pop("HEIF", None)
        Image.ID.remove("HEIF")


def test_other_files_that_are_no_images_get_no_such_advice(photos: Path, tmp_path: Path) -> None:
    (photos / "IMG_3.heic").write_bytes(b"<html>")
    with pytest.raises(UserError, match="IMG_3"):
        gather([photos / "IMG_3.heic"], tmp_path)
    assert not decoding.is_heif(b"\0\0\0\x18ftypmp42")
