"""What is kept of an image that was brought to one size: the shorter of file and square, and the same pixels."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccl.data import ArraySource, EncodedSource, FileSource, SquaredSource, collected, find_images
from ccl.memory import RehearsalMemory

SIDE = 40


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small JPEG, whose PNG is longer, and a large one, whose square's PNG is shorter."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 260, 3), dtype=np.uint8)
    Image.fromarray(noise[:60, :50]).save(tmp_path / "a.jpg", quality=30)
    Image.fromarray(noise).save(tmp_path / "b.jpg", quality=95)
    return tmp_path


def squares(photos: Path) -> SquaredSource:
    source = collected(find_images([photos], photos / "scratch"), SIDE, spool=photos / "scratch").source
    assert isinstance(source, SquaredSource)
    return source


def test_the_shorter_is_kept_and_both_give_the_pixels_that_were_learned(photos: Path) -> None:
    source = squares(photos)
    kept = [source.encoded(position) for position in range(2)]
    assert kept[0] == (photos / "a.jpg").read_bytes()
    assert Image.open(io.BytesIO(kept[1])).format == "PNG"
    assert len(kept[1]) < (photos / "b.jpg").stat().st_size
    memory = RehearsalMemory()
    memory.add(source, torch.tensor([0, 1]), 0, torch.zeros(2), torch.zeros(2))
    again = memory.source_like(source)
    assert again.image_size == (SIDE, SIDE)
    assert torch.equal(again.read(torch.arange(2)), source.images)


def test_a_file_that_changes_or_goes_is_kept_as_it_was(photos: Path) -> None:
    source, original = squares(photos), (photos / "a.jpg").read_bytes()
    Image.new("RGB", (9, 9)).save(photos / "a.jpg")
    assert source.encoded(0) == original
    (photos / "a.jpg").unlink()
    assert source.encoded(0) == original


def test_an_empty_memory_and_images_beside_arrays_stay_as_they_were(photos: Path) -> None:
    source = squares(photos)
    assert len(RehearsalMemory().source_like(source)) == 0
    memory = RehearsalMemory()
    memory.add(FileSource([photos / "a.jpg"]), torch.tensor([0]), 0, torch.zeros(1), torch.zeros(1))
    assert isinstance(memory.source_like(ArraySource(source.images)), EncodedSource)  # not of this size
