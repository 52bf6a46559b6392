"""Folders at their limits: of no images, of one, of the same ones, of links that lead nowhere, or locked."""

import os
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from ccl.data import FileSource, chain, class_incremental, load_dataset
from ccl.errors import UserError


def _image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, shade, shade)).save(path)


def test_links_to_themselves_are_passed_over(tmp_path: Path) -> None:
    _image(tmp_path / "a" / "1.png")
    for name in ("loop.png", "b", "a/loop.png", "a/b"):
        os.symlink(Path(name).name, tmp_path / name)
    dataset = load_dataset("folder", tmp_path)
    assert isinstance(dataset.train, FileSource)
    assert dataset.train.names == [str(tmp_path / "a" / "1.png")]
    assert dataset.class_names == ("a",)


def test_an_empty_folder_and_one_of_texts_hold_no_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no images"):
        load_dataset("folder", tmp_path)
    for name in ("a.txt", "b/c.txt", "d.jpg.bak"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    with pytest.raises(UserError, match=r"holds no images \(\.bmp, .*\)$"):
        load_dataset("folder", tmp_path)


@pytest.mark.parametrize(("name", "labels"), [("1.png", None), ("a/1.png", [0]), ("train/1.png", None)])
def test_one_image_is_a_dataset(tmp_path: Path, name: str, labels: list[int] | None) -> None:
    _image(tmp_path / name, shade=9)
    for dataset in (load_dataset("folder", tmp_path), load_dataset("folder", tmp_path, resize=2)):
        assert (len(dataset.train), dataset.train.ids.tolist(), dataset.test) == (1, [0], None)
        assert dataset.train.picture(0).getpixel((0, 0)) == (9, 9, 9)
        assert (None if dataset.train_labels is None else dataset.train_labels.tolist()) == labels


def test_a_class_without_images_is_no_class(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/c/1.png", "val/c/1.png"):
        _image(tmp_path / name)
    (tmp_path / "train" / "b").mkdir()
    (tmp_path / "train" / "b" / "readme.txt").write_text("soon")
    dataset = load_dataset("folder", tmp_path)
    assert dataset.class_names == ("a", "c")
    assert dataset.test_labels is not None
    assert dataset.test_labels.tolist() == [1]
    assert dataset.notes == (f"{tmp_path / 'train'}: folders without images are skipped: b",)


def test_the_same_image_in_many_places_has_many_ids(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/a/2.png", "train/b/1.png", "val/a/1.png"):
        _image(tmp_path / name, shade=3)
    dataset = load_dataset("folder", tmp_path)
    assert dataset.train_labels is not None
    assert dataset.train_labels.tolist() == [0, 0, 1]
    assert dataset.test is not None
    assert [*dataset.train.ids.tolist(), *dataset.test.ids.tolist()] == [0, 1, 2, 3]
    steps = class_incremental(dataset.train_labels, 2, seed=0)
    arrivals = chain([dataset.train.subset(step.indices) for step in steps])
    assert sorted(arrivals.ids.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(("locked", "asked"), [("x", "x"), ("x", "x/y"), ("x/y", "x")])
def test_an_unreadable_folder_is_one_clear_line(locked: str, asked: str) -> None:
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        root = Path(place)
        root.chmod(0o755)
        _image(root / "x" / "y" / "1.png")
        (root / locked).chmod(0)
        try:
            if is_root:  # may read everything, so another user has to ask
                os.seteuid(65534)
            with pytest.raises(UserError, match=r"can't (open|list) .*: Permission denied$"):
                load_dataset(f"folder:{asked}", root)
        finally:
            if is_root:
                os.seteuid(0)
            (root / locked).chmod(0o755)
