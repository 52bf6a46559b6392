"""The images of the memory: which are shown, in which order, how large, and only those that lie in it."""

import base64
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ccl.report.page_parts import Thumbnail
from ccl.report.run_page import KeptImage, gallery

Keep = Callable[..., None]


def kept(folder: Path, most: int = 60) -> list[KeptImage]:
    return [image for _, images in gallery(folder, most) for image in images]


def images_of(folder: Path, most: int = 60) -> list[Thumbnail]:
    return [image for image, _ in kept(folder, most)]


def opened(image: Thumbnail, mime: str = "image/png") -> Image.Image:
    head, content = image.source.split(",", 1)
    assert head == f"data:{mime};base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def reds(images: list[Thumbnail]) -> list[int]:
    return [opened(image).getpixel((0, 0))[0] for image in images]  # type: ignore[index]


def test_lowest_and_highest_variance_stand_in_order(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path, [(37 * number % 100) / 1000 for number in range(100)])
    order = sorted(range(100), key=lambda number: 37 * number % 100)
    images = images_of(tmp_path)
    assert reds(images) == order[:30] + order[-30:]
    facts = [facts for _, facts in kept(tmp_path)]
    assert facts[1] == ("step 2", "cluster 5", "variance 0.001")
    assert facts[-1] == ("step 2", "cluster 5", "variance 0.099")
    assert all(image.is_small for image in images)
    assert [title for title, _ in gallery(tmp_path)] == [
        "Lowest variance (100 kept)",
        "Highest variance among the kept",
    ]
    assert reds(images_of(tmp_path, most=10)) == order[:5] + order[-5:]


def test_few_images_are_shown_once_and_random_ones_without_variance(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path / "few", [0.3, 0.1, 0.2])
    assert reds(images_of(tmp_path / "few")) == [1, 2, 0]
    keep_images(tmp_path / "random", [float("nan")] * 130)
    ((title, images),) = gallery(tmp_path / "random")
    assert title == "Drawn at random (130 kept)"
    assert reds([image for image, _ in images]) == list(range(0, 130, 3))
    assert {facts for _, facts in images} == {("step 2", "cluster 5")}


def test_large_images_are_made_small(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path, [0.1], size=500)
    (image,) = images_of(tmp_path)
    assert opened(image, "image/jpeg").size == (96, 96)
    assert not image.is_small


def test_a_heavy_image_takes_little_room(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path, [0.1, 0.2])
    draws = np.random.default_rng(0)
    for number, side in ((0, 32), (1, 90)):
        noise = draws.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"memory/{number:06d}.png")
    small, large = images_of(tmp_path)
    assert opened(small).size == (32, 32)  # as it lies in the folder, without loss
    assert opened(large, "image/jpeg").size == (90, 90)
    assert len(large.source) < 12_000 < (tmp_path / "memory/000001.png").stat().st_size


def test_only_images_of_the_memory_are_read(keep_images: Keep, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep_images(run, [0.1, 0.2, 0.3])
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (run / "memory/000001.png").write_bytes(b"no image")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, format="PNG")
    (run / "memory/000002.png").write_bytes(file.getvalue()[:2000])  # a head, and half of its pixels
    with (run / "memory/index.csv").open("a") as file:
        file.write(f"../../secret.png,7,1,1,0.5\n{tmp_path}/secret.png,7,1,1,0.5\ngone.png,8,1,1,0.5\nshort\n")
    assert [facts for _, facts in kept(run)] == [("step 2", "cluster 5", "variance 0.1")]


def test_a_run_without_memory_has_no_gallery(keep_images: Keep, tmp_path: Path) -> None:
    assert gallery(tmp_path) == []
    keep_images(tmp_path, [0.1])
    assert len(images_of(tmp_path)) == 1
    (tmp_path / "memory/index.csv").write_bytes(b"\xff\xfe\x00")
    assert gallery(tmp_path) == []


def test_places_of_choice_are_not_called_a_variance(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path, [2.0, 0.0, 1.0, 3.0])
    (first, images), (last, _) = gallery(tmp_path, is_variance=False)
    assert (first, last) == ("Chosen first (4 kept)", "Chosen last among the kept")
    assert [facts[-1] for _, facts in images] == ["place 0", "place 1"]
