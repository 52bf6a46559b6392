"""Image folders in their three layouts, with the odd files that real folders hold, and at their limits."""

import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import root_with

from ccl.data import chain, class_incremental, load_dataset
from ccl.data.folders import scan
from ccl.errors import UserError


def _image(path: Path, shade: int = 0, size: tuple[int, int] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(path)


def _names(source: object) -> list[str]:
    return [f"{path.parent.name}/{path.name}" for path in map(Path, source.names)]


def test_train_and_val(tmp_path: Path) -> None:
    for name in ("train/b/2.png", "train/b/1.JPG", "train/a/x.png", "train/a/deep/er/y.png", "val/b/9.png"):
        _image(tmp_path / name)
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    _image(tmp_path / "train" / "a" / ".hidden.png")
    _image(tmp_path / "train" / ".git" / "z.png")
    dataset = scan(tmp_path)
    assert dataset.class_names == ("a", "b")
    assert _names(dataset.train) == ["er/y.png", "a/x.png", "b/1.JPG", "b/2.png"]
    assert dataset.train_labels.tolist() == [0, 0, 1, 1]
    assert _names(dataset.test) == ["b/9.png"]
    assert dataset.test_labels.tolist() == [1]
    assert dataset.notes == ()


def test_classes_without_split_hold_out_every_fifth(tmp_path: Path) -> None:
    for number in range(11):
        _image(tmp_path / "a" / f"{number:02}.png")
    _image(tmp_path / "b" / "only.png")
    dataset = scan(tmp_path)
    assert _names(dataset.test) == ["a/04.png", "a/09.png"]
    assert len(dataset.train) == 10
    assert not set(_names(dataset.train)) & set(_names(dataset.test))
    assert any("every 5th image" in note for note in dataset.notes)


def test_too_few_images_to_hold_out_leave_no_test_part(tmp_path: Path) -> None:
    _image(tmp_path / "a" / "1.png")
    dataset = load_dataset("folder", tmp_path, resize=4)
    assert dataset.test is None
    assert dataset.test_labels is None


@pytest.mark.parametrize("below", ["", "train"])
def test_flat_folders_are_unlabelled(tmp_path: Path, below: str) -> None:
    for name in ("b.png", "a.png"):
        _image(tmp_path / below / name)
    dataset = load_dataset("folder", tmp_path)
    assert [name.split("/")[1] for name in _names(dataset.train)] == ["a.png", "b.png"]
    assert dataset.train_labels is None
    assert dataset.test is None
    assert dataset.class_names == ()
    with pytest.raises(UserError, match="has no labels"):
        load_dataset("folder", tmp_path, classes=2)


def test_what_is_passed_over_is_said(tmp_path: Path) -> None:
    _image(tmp_path / "loose.png")
    _image(tmp_path / "a" / "1.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "readme.txt").write_text("soon")
    dataset = scan(tmp_path)
    assert dataset.class_names == ("a",)
    assert any("empty" in note for note in dataset.notes)
    assert any("1 image beside" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"holds no images \(\.bmp, .*\)$"),
        (["val/a/1.png"], "has val/ but no train/"),
        (["train/a/1.png"], "neither val/ nor test/"),
        (["train/ant/1.png", "test/aunt/1.png"], "class 'aunt' .* did you mean 'ant'"),
        (["train/a/1.png", "val/1.png"], "val has no class folders"),
    ],
)
def test_wrong_trees_are_one_clear_line(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        _image(tmp_path / name)
    with pytest.raises(UserError, match=message) as caught:
        scan(tmp_path)
    assert "\n" not in str(caught.value)


def test_links_that_loop_do_not_hang(tmp_path: Path) -> None:
    _image(tmp_path / "real" / "a" / "1.png")
    (tmp_path / "set").mkdir()
    os.symlink(tmp_path / "real" / "a", tmp_path / "set" / "a")  # a class may be a link
    os.symlink(tmp_path / "real" / "a", tmp_path / "real" / "a" / "loop")
    assert len(scan(tmp_path / "set").train) == 1


def test_a_folder_below_the_root_and_its_name(tmp_path: Path) -> None:
    _image(tmp_path / "weeks" / "one" / "1.png")
    assert load_dataset("folder:weeks/one", tmp_path).name == "one"
    with pytest.raises(UserError, match=r"no folder .*two"):
        load_dataset("folder:weeks/two", tmp_path)


def test_imagenet_sub_takes_the_first_hundred_sorted_classes_or_a_list(tmp_path: Path) -> None:
    for number in range(103):
        for part in ("train", "val"):
            _image(tmp_path / "imagenet" / part / f"n{number:04}" / "1.png", shade=number)
    sub = load_dataset("imagenet-sub", tmp_path)
    assert sub.class_names == tuple(f"n{number:04}" for number in range(100))
    assert "-first100-" in sub.fingerprint
    assert len(load_dataset("imagenet-full", tmp_path).class_names) == 103
    (tmp_path / "my list.txt").write_text("n0102\nn0007\n")
    listed = load_dataset("imagenet-sub", tmp_path, classes=tmp_path / "my list.txt", resize=2)
    assert listed.class_names == ("n0007", "n0102")
    assert listed.train.read(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [7, 102]
    assert "-my_list-" in listed.fingerprint


def test_fingerprint_of_files_follows_names_and_sizes(tmp_path: Path) -> None:
    _image(tmp_path / "a.png")
    first = load_dataset("folder", tmp_path).fingerprint
    assert load_dataset("folder", tmp_path).fingerprint == first
    _image(tmp_path / "b.png")
    second = load_dataset("folder", tmp_path).fingerprint
    _image(tmp_path / "b.png", size=(50, 40))
    third = load_dataset("folder", tmp_path).fingerprint
    resized = {load_dataset("folder", tmp_path, resize=side).fingerprint for side in (4, 5)}
    assert len({first, second, third} | resized) == 5


def test_bad_files_are_skipped_and_listed(tmp_path: Path) -> None:
    for number in range(40):
        _image(tmp_path / "train" / "ab"[number % 2] / f"{number:02}.png", shade=number)
    _image(tmp_path / "val" / "a" / "1.png")
    (tmp_path / "train" / "a" / "04.png").write_bytes(b"")
    (tmp_path / "train" / "b" / "zz.jpg").write_text("<html>not found</html>")
    heard: list[tuple[int, int]] = []
    dataset = load_dataset("folder", tmp_path, resize=3, progress=lambda *now: heard.append(now))
    assert [Path(bad.path).name for bad in dataset.skipped] == ["04.png", "zz.jpg"]
    shades = dataset.train.read(torch.arange(len(dataset.train)))[:, 0, 0, 0].tolist()
    assert shades == [n for n in range(0, 40, 2) if n != 4] + list(range(1, 40, 2))
    assert dataset.train_labels.tolist() == [0] * 19 + [1] * 20
    assert dataset.train.ids.tolist() == list(range(39))
    assert dataset.test.ids.tolist() == [39]
    assert heard[40] == (41, 41)
    (tmp_path / "train" / "b" / "01.png").write_bytes(b"PNG")
    with pytest.raises(UserError, match=r"^3 of 41 images can't be decoded, the first is .*04\.png: [^\n]*$"):
        load_dataset("folder", tmp_path, resize=3)


def test_a_class_whose_name_is_no_text_has_one_that_can_be_written(tmp_path: Path) -> None:
    for name in (b"a\xff", b"b"):
        _image(Path(os.fsdecode(os.fsencode(tmp_path / "pictures") + b"/" + name + b"/0.png")))
    assert load_dataset("folder:pictures", tmp_path).class_names == ("a\\xff", "b")


def test_links_to_themselves_are_passed_over(tmp_path: Path) -> None:
    _image(tmp_path / "a" / "1.png")
    for name in ("loop.png", "b", "a/loop.png", "a/b"):
        os.symlink(Path(name).name, tmp_path / name)
    dataset = load_dataset("folder", tmp_path)
    assert dataset.train.names == [str(tmp_path / "a" / "1.png")]
    assert dataset.class_names == ("a",)


@pytest.mark.parametrize(("name", "labels"), [("1.png", None), ("a/1.png", [0]), ("train/1.png", None)])
def test_one_image_is_a_dataset(tmp_path: Path, name: str, labels: list[int] | None) -> None:
    _image(tmp_path / name, shade=9)
    for dataset in (load_dataset("folder", tmp_path), load_dataset("folder", tmp_path, resize=2)):
        assert (len(dataset.train), dataset.train.ids.tolist(), dataset.test) == (1, [0], None)
        assert dataset.train.picture(0).getpixel((0, 0)) == (9, 9, 9)
        assert (None if dataset.train_labels is None else dataset.train_labels.tolist()) == labels


def test_the_same_image_in_many_places_has_many_ids(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/a/2.png", "train/b/1.png", "val/a/1.png"):
        _image(tmp_path / name, shade=3)
    dataset = load_dataset("folder", tmp_path)
    assert dataset.train_labels.tolist() == [0, 0, 1]
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


@pytest.mark.needs_data
def test_real_photographs() -> None:
    root = root_with("imagenette-tiny")
    dataset = load_dataset("folder:imagenette-tiny", root)
    assert (len(dataset.train), len(dataset.test or [])) == (800, 200)
    assert dataset.class_names[0] == "n01440764"
    assert all(dataset.train.picture(position).mode == "RGB" for position in range(0, 800, 80))
    small = load_dataset("folder:imagenette-tiny", root, resize=24, classes=3, images_per_class=10)
    assert (len(small.train), len(small.test or []), small.skipped) == (30, 60, ())
    # The mean of a photograph survives its reduction, whatever the filter.
    photo = np.asarray(dataset.train.picture(0), dtype=float).mean(axis=(0, 1))
    assert np.abs(np.asarray(small.train.picture(0), dtype=float).mean(axis=(0, 1)) - photo).max() < 2
    with Image.open(io.BytesIO(dataset.train.encoded(5))) as original:
        assert original.format == "JPEG"  # the original bytes
