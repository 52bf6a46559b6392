"""Every file is decoded once when a dataset is loaded: converted rightly, or left out and listed with a reason."""

import csv
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from ccl.data import ArraySource, BadImageError, Dataset, EncodedSource, load_dataset, write_bad_images
from ccl.data.dataset_loader import ingested
from ccl.errors import UserError

Colour = tuple[int, int, int]
RED, BLUE = (255, 0, 0), (0, 0, 255)
NUM_PLAIN = 110


def _bytes(image: Image.Image, format_name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format_name, **options)
    return buffer.getvalue()


def _lying() -> bytes:
    """Red left and blue right as stored, to be turned by a quarter clockwise: upright, red is above blue."""
    image = Image.new("RGB", (64, 32), RED)
    image.paste(BLUE, (32, 0, 64, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    return _bytes(image, "JPEG", quality=95, exif=exif)


# name -> content, size (W, H), and the colours of the first and the last pixel
CONVERTED: dict[str, tuple[bytes, tuple[int, int], Colour, Colour]] = {
    "1x1.png": (_bytes(Image.new("RGB", (1, 1), (9, 8, 7)), "PNG"), (1, 1), (9, 8, 7), (9, 8, 7)),
    "1x5000.png": (_bytes(Image.new("RGB", (1, 5000), (1, 2, 3)), "PNG"), (1, 5000), (1, 2, 3), (1, 2, 3)),
    "5000x1.bmp": (_bytes(Image.new("RGB", (5000, 1), (3, 2, 1)), "BMP"), (5000, 1), (3, 2, 1), (3, 2, 1)),
    "cmyk.jpg": (_bytes(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100), (16, 16), RED, RED),
    "rotated.jpg": (_lying(), (32, 64), RED, BLUE),
}

_NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
_JPEG, _PROGRESSIVE, _PNG = _bytes(_NOISE, "JPEG"), _bytes(_NOISE, "JPEG", progressive=True), _bytes(_NOISE, "PNG")
REFUSED: dict[str, tuple[bytes, str]] = {
    "cut.jpg": (_JPEG[: len(_JPEG) * 3 // 4], "truncated"),
    "cut.png": (_PNG[: len(_PNG) * 3 // 4], "truncated"),
    "cut-progressive.jpeg": (_PROGRESSIVE[: len(_PROGRESSIVE) * 3 // 4], "truncated"),
    "page.jpg": (b"<html>404</html>", "not an image of the formats"),
    "zero.jpg": (b"", "empty"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Every odd file twice, in both classes, among as many plain ones as keep the bad ones below a twentieth."""
    odd = {name: row[0] for name, row in CONVERTED.items()} | {name: row[0] for name, row in REFUSED.items()}
    plain = _bytes(Image.new("RGB", (5, 4), (50, 60, 70)), "PNG")
    for label in "ab":
        folder = tmp_path / "images" / "train" / label
        folder.mkdir(parents=True)
        for name, content in {**odd, **{f"plain{number}.png": plain for number in range(NUM_PLAIN)}}.items():
            (folder / name).write_bytes(content)
    (tmp_path / "images" / "val" / "a").mkdir(parents=True)
    (tmp_path / "images" / "val" / "a" / "1.png").write_bytes(plain)
    return tmp_path / "images"


def test_every_kind_of_file_through_the_folder_door(tree: Path, tmp_path: Path) -> None:
    dataset = load_dataset("folder", tree)
    assert len(dataset.train) == 2 * (NUM_PLAIN + len(CONVERTED))
    for position, path in enumerate(map(Path, dataset.train.names)):
        if path.name in CONVERTED:
            _, size, first, last = CONVERTED[path.name]
            picture = dataset.train.picture(position)
            assert (picture.mode, picture.size) == ("RGB", size)
            pixels = np.asarray(picture, dtype=int)
            assert np.abs(pixels[0, 0] - first).max() <= 2, path.name
            assert np.abs(pixels[-1, -1] - last).max() <= 2, path.name
    assert ["ab"[label] for label in dataset.train_labels] == [
        path.parent.name for path in map(Path, dataset.train.names)
    ]
    assert dataset.train.ids.tolist() == list(range(len(dataset.train)))
    assert dataset.test.ids.tolist() == [len(dataset.train)]
    write_bad_images(tmp_path / "bad_images.csv", dataset.skipped)
    with (tmp_path / "bad_images.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    planted = sorted((str(tree / "train" / label / name), REFUSED[name][1]) for label in "ab" for name in REFUSED)
    assert [row["path"] for row in rows] == [path for path, _ in planted]
    for row, (name, reason) in zip(rows, planted, strict=True):
        assert reason in row["reason"]
        assert name not in row["reason"]
    assert str(dataset.skipped[0]) == f"{dataset.skipped[0].path}: {dataset.skipped[0].reason}"
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False  # else a cut file would pass, with grey for the rest


def test_resized_files_are_the_same_files(tree: Path) -> None:
    plain, small = load_dataset("folder", tree), load_dataset("folder", tree, resize=4)
    assert small.skipped == plain.skipped
    assert small.train_labels.tolist() == plain.train_labels.tolist()
    assert small.train.ids.tolist() == plain.train.ids.tolist()
    for position, path in enumerate(map(Path, plain.train.names)):
        if path.name in CONVERTED:
            _, _, first, last = CONVERTED[path.name]
            pixels = np.asarray(small.train.picture(position), dtype=int)
            assert np.abs(pixels[0, 0] - first).max() <= 2, path.name
            assert np.abs(pixels[-1, -1] - last).max() <= 2, path.name


@pytest.mark.parametrize("resize", [None, 2])
def test_labels_of_the_test_part_follow_too(tmp_path: Path, resize: int | None) -> None:
    for part, label in (("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")):
        (tmp_path / part / label).mkdir(parents=True)
        for number in range(11):
            Image.new("RGB", (3, 3), (ord(label), 0, 0)).save(tmp_path / part / label / f"{number:02}.png")
    (tmp_path / "val" / "a" / "03.png").write_bytes(b"")
    dataset = load_dataset("folder", tmp_path, resize=resize)
    assert dataset.test_labels.tolist() == [0] * 10 + [1] * 11
    shades = [dataset.test.picture(position).getpixel((0, 0)) for position in range(21)]
    assert shades == [(ord("ab"[label]), 0, 0) for label in dataset.test_labels]
    assert dataset.test.ids.tolist() == list(range(22, 43))


def test_a_bad_test_part_stops_too(tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.new("RGB", (3, 3)).save(tmp_path / part / "a" / "1.png")
    (tmp_path / "val" / "a" / "2.png").write_bytes(b"GIF89a")
    with pytest.raises(UserError, match=r"^1 of 2 images .*/val/a/2\.png: ") as caught:
        load_dataset("folder", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_rots_without_a_change_of_size_changes_the_fingerprint(tree: Path) -> None:
    before = load_dataset("folder", tree), load_dataset("folder", tree, resize=2)
    victim = tree / "train" / "a" / "plain7.png"
    victim.write_bytes(bytes(victim.stat().st_size))
    after = load_dataset("folder", tree), load_dataset("folder", tree, resize=2)
    for old, new in zip(before, after, strict=True):
        assert len(new.skipped) == len(old.skipped) + 1
        assert new.fingerprint != old.fingerprint


def test_a_file_that_rots_later_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (3, 3)).save(tmp_path / "a.png")
    source = load_dataset("folder", tmp_path).train
    (tmp_path / "a.png").write_bytes(b"?")
    with pytest.raises(BadImageError, match=r"/a\.png: not an image") as caught:
        source.picture(0)
    assert caught.value.path == tmp_path / "a.png"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as from a loader worker
    (tmp_path / "a.png").unlink()
    with pytest.raises(BadImageError, match=r"/a\.png: No such file or directory$"):
        source.picture(0)


def test_arrays_pass_and_bytes_in_memory_are_decoded_by_number() -> None:
    images = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 3, 2, 2).contiguous()
    array = ArraySource(images)
    assert isinstance(passed := ingested(Dataset("a", array, None, None, None, (), "")).train, ArraySource)
    assert passed.images is images
    files = [b"" if position == 8 else array.encoded(position) for position in range(40)]
    found = ingested(Dataset("b", EncodedSource(files, torch.arange(40)), torch.arange(40), None, None, (), ""))
    assert [bad.path for bad in found.skipped] == ["image 8"]
    shades = [found.train.picture(position).getpixel((0, 0)) for position in range(39)]
    assert shades == [(label, label, label) for label in found.train_labels.tolist()]
