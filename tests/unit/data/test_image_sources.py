"""One protocol, four forms: the same images must come out of each."""

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccl.data import (
    ArraySource,
    BadImageError,
    EncodedSource,
    FileSource,
    ImageSource,
    JoinedSource,
    SquaredSource,
    collected,
    find_images,
)
from ccl.data.image_sources import chain
from ccl.memory import RehearsalMemory

NUM = 5
IDS = torch.tensor([30, 10, 50, 20, 40])


@pytest.fixture
def images() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (NUM, 3, 6, 4), dtype=np.uint8))


@pytest.fixture(params=["array", "files", "encoded", "joined", "selected"])
def source(request: pytest.FixtureRequest, images: torch.Tensor, tmp_path: Path) -> ImageSource:
    array = ArraySource(images, IDS)
    if request.param == "files":
        for position in range(NUM):
            (tmp_path / f"{position}.png").write_bytes(array.encoded(position))
        return FileSource([tmp_path / f"{position}.png" for position in range(NUM)], IDS)
    if request.param == "encoded":
        return EncodedSource([array.encoded(position) for position in range(NUM)], IDS)
    if request.param in ("joined", "selected"):
        empty = torch.tensor([], dtype=torch.int64)
        joined = JoinedSource([array.subset(empty), array.subset(torch.arange(2)), array.subset(torch.arange(2, NUM))])
        return joined if request.param == "joined" else joined.subset(torch.arange(NUM))
    return array


def _pixels(source: ImageSource, position: int) -> torch.Tensor:
    return torch.from_numpy(np.array(source.picture(position))).permute(2, 0, 1)


def test_pictures_ids_and_subsets_agree(source: ImageSource, images: torch.Tensor) -> None:
    assert len(source) == NUM
    assert source.ids.tolist() == IDS.tolist()
    for position in range(NUM):
        assert torch.equal(_pixels(source, position), images[position])
        again = EncodedSource([source.encoded(position)], torch.tensor([0]))
        assert torch.equal(_pixels(again, 0), images[position])
    part = source.subset(torch.tensor([4, 0, 3])).subset(torch.tensor([2, 0]))
    assert part.ids.tolist() == [20, 40]
    assert torch.equal(_pixels(part, 0), images[3])
    assert torch.equal(_pixels(part, 1), images[4])


def test_batches_come_in_the_order_asked_for_where_sizes_are_equal(source: ImageSource, images: torch.Tensor) -> None:
    wanted = torch.tensor([3, 0, 4, 1, 3])
    if source.image_size is None:
        with pytest.raises(TypeError):
            source.read(wanted)
        return
    assert source.image_size == (6, 4)
    assert torch.equal(source.read(wanted), images[wanted])


def test_encoded_images_decode_into_one_tensor(images: torch.Tensor) -> None:
    array = ArraySource(images, IDS)
    encoded = EncodedSource([array.encoded(position) for position in range(NUM)], IDS)
    assert encoded.decoded((4, 6)) is encoded
    assert len(EncodedSource([]).decoded((6, 4))) == 0
    decoded = encoded.decoded((6, 4))
    assert isinstance(decoded, ArraySource)
    assert torch.equal(decoded.images, images)
    assert decoded.ids.tolist() == IDS.tolist()


def test_chained_sources_keep_their_ids_and_arrays_of_one_size_become_one(images: torch.Tensor) -> None:
    array = ArraySource(images, IDS)
    parts = [array.subset(torch.tensor([2])), array.subset(torch.arange(0)), array.subset(torch.tensor([0, 1]))]
    whole = chain(parts)
    assert isinstance(whole, ArraySource)
    assert whole.ids.tolist() == [50, 30, 10]
    assert torch.equal(whole.images, images[[2, 0, 1]])
    mixed = chain([*parts, ArraySource(images[:1, :, :3])])
    assert mixed.image_size is None
    assert torch.equal(_pixels(mixed, 3), images[0, :, :3])


@pytest.mark.parametrize("join", [JoinedSource, chain])
@pytest.mark.parametrize("parts", [[], [EncodedSource([], torch.arange(0))] * 2])
def test_no_images_are_an_empty_source(
    join: Callable[[Sequence[ImageSource]], ImageSource], parts: list[ImageSource]
) -> None:
    empty = join(parts)
    assert len(empty) == 0
    assert empty.ids.tolist() == []
    assert empty.ids.dtype == torch.int64
    assert empty.image_size is None
    assert len(empty.subset(torch.arange(0))) == 0


def test_a_subset_of_an_array_shares_its_memory_and_carries_its_own_images_only() -> None:
    whole = ArraySource(torch.zeros(500, 3, 8, 8, dtype=torch.uint8))
    part = whole.subset(torch.tensor([7, 3, 9])).subset(torch.tensor([2, 0]))
    whole.images[9] = 200
    assert part.read(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [200, 0]
    assert len(pickle.dumps(part)) < 2000  # what a loader worker is sent
    again = pickle.loads(pickle.dumps(part))
    assert torch.equal(again.images, part.images)
    assert again.ids.tolist() == [9, 7]


def test_chained_empty_arrays_keep_their_size(images: torch.Tensor) -> None:
    nothing = ArraySource(images[:0])
    empty = chain([nothing, nothing])
    assert (len(empty), empty.image_size) == (0, (6, 4))
    assert empty.read(torch.arange(0)).shape == (0, 3, 6, 4)
    joined = JoinedSource([JoinedSource([]), ArraySource(images, IDS)])
    assert joined.ids.tolist() == IDS.tolist()
    assert torch.equal(joined.read(torch.tensor([2])), images[2:3])


def test_a_subset_of_joined_files_carries_its_own_files_only_and_its_new_ids() -> None:
    files = FileSource([f"/somewhere/{number:05}.png" for number in range(5000)])
    joined = JoinedSource([files, EncodedSource([b"old image"] * 50, torch.arange(50))])
    joined.ids = torch.arange(len(joined)) + 7  # as a dataset numbers its images
    part = joined.subset(torch.tensor([5003, 17, 5001, 4999])).subset(torch.tensor([3, 0, 1]))
    assert part.ids.tolist() == [4999 + 7, 5003 + 7, 17 + 7]
    assert part.encoded(1) == b"old image"
    with pytest.raises(BadImageError, match=r"/somewhere/00017\.png"):
        part.picture(2)
    assert len(pickle.dumps(part)) < 4000  # what a loader worker is sent


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.uint8)])
def test_wrong_arrays_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="must be uint8"):
        ArraySource(wrong)


# -- squares that know their files --

SIDE = 40


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small JPEG, whose PNG is longer, and a large one, whose square's PNG is shorter."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 260, 3), dtype=np.uint8)
    Image.fromarray(noise[:60, :50]).save(tmp_path / "a.jpg", quality=30)
    Image.fromarray(noise).save(tmp_path / "b.jpg", quality=95)
    return tmp_path


def squares(photos: Path) -> SquaredSource:
    return collected(find_images([photos], photos / "scratch"), SIDE, spool=photos / "scratch").source


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
