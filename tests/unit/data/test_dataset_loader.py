"""Datasets by name: narrowing, resizing, fingerprints, and one clear line for every mistake."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccl.data import ArraySource, Dataset, data_root, load_dataset
from ccl.data.dataset import narrowed
from ccl.data.dataset_loader import ingested
from ccl.errors import UserError


def _coded(size: tuple[int, int] = (4, 4)) -> Dataset:
    """Image n is of the shade n; labels 0 1 2 0 1 2 …"""
    shades = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1)
    train = ArraySource(shades.expand(12, 3, *size).contiguous())
    test = ArraySource(train.images[:6] + 100)
    labels = torch.arange(12) % 3
    return Dataset("coded", train, labels, test, labels[:6], ("ant", "bee", "cat"), "")


def _shades(source: object) -> list[int]:
    return source.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("classes", [["cat", "ant"], ("ant", "cat")])
def test_named_classes_keep_the_order_of_the_dataset(classes: list[str]) -> None:
    small = narrowed(_coded(), classes, images_per_class=2)
    assert small.class_names == ("ant", "cat")
    assert _shades(small.train) == [0, 2, 3, 5]
    assert small.train_labels.tolist() == [0, 1, 0, 1]
    assert _shades(small.test) == [100, 102, 103, 105]  # the test part stays whole
    assert small.test_labels.tolist() == [0, 1, 0, 1]


def test_the_first_classes_and_a_file_of_names_agree(tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("bee\n\n  ant \n", encoding="utf-8")
    first = narrowed(_coded(), 2, None)
    listed = narrowed(_coded(), tmp_path / "two.txt", None)
    assert first.class_names == listed.class_names == ("ant", "bee")
    assert _shades(first.train) == _shades(listed.train) == [0, 1, 3, 4, 6, 7, 9, 10]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["bea"], "coded has no class 'bea'; did you mean 'bee'\\?"),
        (["ant", "ant"], "'ant' is named twice"),
        ([], "empty"),
        (7, "has 3 classes, not 7; nearest valid value: 3"),
        (0, "nearest valid value: 1"),
        ("no-such-file.txt", "can't read the list of classes no-such-file.txt"),
    ],
)
def test_wrong_classes_are_one_clear_line(classes: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        narrowed(_coded(), classes, None)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_too_few_images_per_class_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        narrowed(_coded(), None, 0)


def test_downscaling_averages_and_takes_the_centre_square() -> None:
    images = torch.zeros(1, 3, 4, 8, dtype=torch.uint8)
    images[0, 0, :, 2:6] = 200  # the centre square is red, what is beside it is black
    small = ingested(Dataset("wide", ArraySource(images), None, None, None, (), ""), 2)
    assert small.train.images[0, 0].tolist() == [[200, 200], [200, 200]]
    checker = (torch.arange(16).view(1, 1, 4, 4) // 4 + torch.arange(4)) % 2 * 200
    plain = ArraySource(checker.expand(1, 3, 4, 4).to(torch.uint8).contiguous())
    one = ingested(Dataset("checker", plain, None, None, None, (), ""), 1)
    assert abs(_shades(one.train)[0] - 100) <= 1  # nearest-neighbour would give 0 or 200


def test_arrays_and_files_are_resized_alike(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    of_file = load_dataset("folder", tmp_path, resize=8).train
    array = ArraySource(torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous())
    of_array = ingested(Dataset("a", array, None, None, None, (), ""), 8).train
    difference = of_file.read(torch.tensor([0])).int() - of_array.read(torch.tensor([0])).int()
    assert difference.abs().max() <= 1


def test_fingerprint_follows_content_classes_and_size() -> None:
    plain = load_dataset("greek").fingerprint
    assert load_dataset("greek").fingerprint == plain
    others = [
        load_dataset("greek", seed=1).fingerprint,
        load_dataset("greek", resize=16).fingerprint,
        load_dataset("greek", classes=5).fingerprint,
        load_dataset("greek", classes=["alpha"]).fingerprint,
        load_dataset("greek", images_per_class=5).fingerprint,
    ]
    assert len({plain, *others}) == 6
    assert "-first5-" in others[2]
    assert "-list-" in others[3]


def test_unknown_names_and_missing_data_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no dataset 'cifar-100'; did you mean 'cifar100'"):
        load_dataset("cifar-100")
    with pytest.raises(UserError, match=r"cifar-10-batches-py; set --data-root or CCL_DATA, or pass --download"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(UserError, match=r"imagenet; set --data-root or CCL_DATA"):
        load_dataset("imagenet-sub", tmp_path)
    with pytest.raises(UserError, match="at least 1 pixel"):
        load_dataset("digits", resize=0)


def test_the_root_is_given_or_in_the_environment_or_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CCL_DATA", raising=False)
    assert data_root(None) == Path("data")
    monkeypatch.setenv("CCL_DATA", str(tmp_path))
    assert data_root(None) == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")
