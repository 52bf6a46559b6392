"""Pictures of any size and kind: decoded as large as their crops need, the same whoever decodes them."""

import io
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ccl.data.decoding import Reduction, decode
from ccl.data.image_sources import EncodedSource, FileSource, ImageSource
from ccl.views import RECIPES, Recipe, ViewBatch, Viewer
from ccl.views.loader_workers import Cutting, LostImageError
from ccl.views.random_draws import ViewKey, drawn_boxes

LARGE = RECIPES["moco_imagenet"]


def _bare(size: int, **changes: float) -> Recipe:
    """Crops without flip, colour or normalisation."""
    return replace(LARGE.for_probe(), size=size, flip=0.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), **changes)  # type: ignore[arg-type]


def _photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes with some fine detail, as photographs have."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    noise = random.normal(0, 6, (height, width, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


def _bytes(image: Image.Image, format_name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format_name, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def _turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _bytes(image, "JPEG", quality=95, exif=exif)


ODD = {
    "1x500.png": _bytes(_photo(1, 500), "PNG"),
    "500x3.png": _bytes(_photo(500, 3), "PNG"),
    "1x500.jpg": _bytes(_photo(1, 500), "JPEG"),
    "500x3.jpg": _bytes(_photo(500, 3), "JPEG"),
    "grey.jpg": _bytes(_photo(300, 200).convert("L"), "JPEG"),
    "cmyk.jpg": _bytes(_photo(300, 200).convert("CMYK"), "JPEG"),
    "alpha.png": _bytes(_photo(90, 84).convert("RGBA"), "PNG"),
    "palette.png": _bytes(_photo(84, 84).convert("P"), "PNG"),
    "224.jpg": _bytes(_photo(224, 224), "JPEG"),
    "turned.jpg": _turned(_photo(301, 203), 6),
    "progressive.jpg": _bytes(_photo(640, 480), "JPEG", progressive=True),
}


def _views(source: ImageSource, recipe: Recipe, num_workers: int = 0) -> list[ViewBatch]:
    plain = torch.arange(len(source)) % 2 == 0
    batches = list(torch.arange(len(source)).split(4))
    viewer = Viewer(recipe, 3, num_workers=num_workers)
    return list(viewer.batches(source, batches, moment=(1, 2), num_views=2, plain=plain))


@pytest.fixture
def folder(tmp_path: Path) -> FileSource:
    for name, content in ODD.items():
        (tmp_path / name).write_bytes(content)
    return FileSource([tmp_path / name for name in ODD], torch.arange(len(ODD)) * 5 + 1)


@pytest.mark.parametrize("size", [32, 84, 224])
def test_odd_pictures_look_the_same_with_any_number_of_workers(folder: FileSource, size: int) -> None:
    recipe = replace(LARGE, size=size)
    alone = _views(folder, recipe)
    for num_workers in (1, 3):
        for one, other in zip(alone, _views(folder, recipe, num_workers), strict=True):
            assert torch.equal(torch.stack(one.views), torch.stack(other.views))
            assert torch.equal(one.plain, other.plain)
            assert torch.equal(one.ids, other.ids)
    assert all(torch.isfinite(batch.views[1]).all() and batch.views[1].shape[2:] == (size, size) for batch in alone)


def _by_hand(content: bytes, number: int, view: int, recipe: Recipe) -> Tensor:
    """The crop as Pillow makes it of the fully decoded picture, in 0 … 255."""
    picture = decode(io.BytesIO(content))
    height, width = torch.tensor([picture.height]), torch.tensor([picture.width])
    uniforms = ViewKey(3, (1, 2), view).uniforms(torch.tensor([number]))
    box = drawn_boxes(recipe, height, width, uniforms)[0].tolist()
    left, top, across, down = (int(side) for side in box)
    cut = picture.crop((left, top, left + across, top + down)).resize((recipe.size,) * 2, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1).float()


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("size", [84, 224])
def test_crops_are_pillows_of_the_full_picture(name: str, size: int) -> None:
    recipe = _bare(size)
    (batch,) = _views(EncodedSource([ODD[name]], torch.tensor([4])), recipe)
    for view, pixels in enumerate(batch.views):
        difference = (pixels[0] * 255 - _by_hand(ODD[name], 4, view, recipe)).abs()
        is_reduced = size == 84 and name == "progressive.jpg"  # the one here whose every crop is large enough
        assert difference.max() <= (25 if is_reduced else 1e-3)
        assert difference.mean() <= (1.5 if is_reduced else 1e-3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("width", "height"), [(640, 480), (641, 479)])
def test_a_reduced_decoding_moves_nothing_and_changes_little(orientation: int, width: int, height: int) -> None:
    content = _turned(_photo(width, height), orientation)
    recipe, asked = _bare(48, min_scale=0.7), []

    class Watched(EncodedSource):
        def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
            picture = super().picture(position, reduction)
            asked.append(picture.size)
            return picture

        def subset(self, positions: Tensor) -> ImageSource:
            return self

    (batch,) = _views(Watched([content], torch.tensor([9])), recipe)
    upright = (height, width) if orientation >= 5 else (width, height)
    # Turned, a picture whose sides can't be divided is decoded in full.
    divisor = 1 if orientation != 1 and width % 8 else 8
    assert asked == [tuple(-(-side // divisor) for side in upright)]
    for view, pixels in enumerate(batch.views):
        difference = (pixels[0] * 255 - _by_hand(content, 9, view, recipe)).abs()
        assert difference.mean() < (1.5 if divisor > 1 else 1e-3), view
        # A shift by half a pixel of the view would show: shapes are smooth, and steep somewhere.
        assert difference.max() < 16


@pytest.mark.parametrize("size", [1, 7, 32, 100, 224, 400])
def test_no_crop_is_decoded_smaller_than_its_view(size: int) -> None:
    for seed in range(40):
        uniforms = torch.rand(3, 22, generator=torch.Generator().manual_seed(seed))
        width, height = int(200 + 40 * seed), 700
        cutting = Cutting(_bare(size), uniforms, wants_plain=True)
        divisor = cutting.reduction(width, height)
        smallest = min(min(box[2], box[3]) for box in cutting.boxes)
        assert len(cutting.boxes) == 4
        assert divisor == max(by for by in (1, 2, 4, 8) if by == 1 or smallest / by >= size)


class Signed:
    """Pictures that show which process made them."""

    image_size = None

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, positions: Tensor) -> Tensor:
        raise TypeError

    def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
        process = os.getpid()
        return Image.new("RGB", (4, 4), (process >> 16 & 255, process >> 8 & 255, process & 255))

    def encoded(self, position: int) -> bytes:
        raise TypeError

    def subset(self, positions: Tensor) -> "Signed":
        return Signed(self.ids[positions])


def _processes(batches: Iterator[ViewBatch]) -> set[int]:
    pixels = [batch.views[0][:, :, 0, 0] * 255 for batch in batches]
    return {int(red) << 16 | int(green) << 8 | int(blue) for red, green, blue in torch.cat(pixels).round().tolist()}


def test_workers_stay_over_epochs_and_sources_and_end_when_closed() -> None:
    viewer = Viewer(_bare(4), 0, num_workers=2)
    batches = list(torch.arange(12).split(2))
    first = _processes(viewer.batches(Signed(torch.arange(12)), batches, num_views=1))
    assert len(first) == 2
    assert os.getpid() not in first
    for start in (100, 200):
        again = _processes(viewer.batches(Signed(torch.arange(12) + start), batches, num_views=1))
        assert again == first
    viewer.close()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() for process in first) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{process}").exists() for process in first)
    assert _processes(viewer.batches(Signed(torch.arange(12)), batches, num_views=1)).isdisjoint(first)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_left_early_and_two_at_once_disturb_nobody(folder: FileSource, num_workers: int) -> None:
    recipe, batches = replace(LARGE, size=16), list(torch.arange(len(ODD)).split(2))
    fresh = [list(Viewer(recipe, 0).batches(folder, batches, moment=(n,), num_views=1)) for n in range(3)]
    viewer = Viewer(recipe, 0, num_workers=num_workers)
    left = viewer.batches(folder, batches, moment=(0,), num_views=1)
    next(left)
    both = zip(left, viewer.batches(folder, batches, moment=(1,), num_views=1), strict=False)
    for number, (one, other) in enumerate(both):
        assert torch.equal(one.views[0], fresh[0][number + 1].views[0])
        assert torch.equal(other.views[0], fresh[1][number].views[0])
        if number == 2:
            break
    del both, left
    for one, other in zip(viewer.batches(folder, batches, moment=(2,), num_views=1), fresh[2], strict=True):
        assert torch.equal(one.views[0], other.views[0])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_picture_that_is_lost_on_the_way_is_one_line_and_the_next_epoch_works(
    folder: FileSource, tmp_path: Path, num_workers: int, how: str
) -> None:
    viewer, batches = Viewer(_bare(32), 0, num_workers=num_workers), list(torch.arange(len(folder)).split(4))
    before = list(viewer.batches(folder, batches, num_views=1))
    path = tmp_path / sorted(ODD)[5]
    content = path.read_bytes()
    path.unlink() if how == "deleted" else path.write_bytes(b"")
    with pytest.raises(LostImageError) as caught:
        list(viewer.batches(folder, batches, num_views=1))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert line.endswith("; put it back as it was, and the same command resumes")
    path.write_bytes(content)
    for one, other in zip(viewer.batches(folder, batches, num_views=1), before, strict=True):
        assert torch.equal(one.views[0], other.views[0])
