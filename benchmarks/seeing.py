"""Views and files: ours against kornia's and against Pillow one image at a time."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from benchmarks.plain_pillow import view
from benchmarks.timing import Row, fastest
from ccl.data import ArraySource, load_dataset
from ccl.views import RECIPES, Viewer


def views() -> Iterator[Row]:
    """Images a second at 32 pixels, ours in batches of 64 as training asks for them, and at 224 with blur."""
    yield from _against("moco_cifar", 32, 1024, (5.0, 20.0))
    yield from _against("moco_imagenet", 224, 16, (3.0, 3.0))


def _against(recipe: str, size: int, count: int, goals: tuple[float, float]) -> Iterator[Row]:
    import kornia.augmentation as K

    chosen = RECIPES[recipe]
    images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8)
    viewer, source, batches = Viewer(chosen, 0), ArraySource(images), torch.split(torch.arange(count), 64)
    has_blur = chosen.blur_probability > 0
    layers = [
        K.RandomResizedCrop((size, size), scale=(chosen.min_scale, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        *([K.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5)] if has_blur else []),
    ]
    theirs, unit = torch.nn.Sequential(*layers), images.float() / 255
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    ours_s, kornia_s, pillow_s = fastest(
        lambda: list(viewer.batches(source, batches, num_views=1)),
        lambda: [theirs(unit[some]) for some in batches],
        lambda: [view(picture, size, chosen.min_scale, has_blur) for picture in pictures],
    )
    name = f"views, {size} px{' with blur' if has_blur else ''}: images/s"
    yield Row(f"{name} ÷ kornia", kornia_s / ours_s, goals[0], at_least=True)
    yield Row(f"{name} ÷ Pillow in one process", pillow_s / ours_s, goals[1], at_least=True)


def files() -> Iterator[Row]:
    """From JPEG files to two finished 224-pixel views, in one process; needs CCL_DATA with imagenette-tiny."""
    root = Path(os.environ.get("CCL_DATA", "data"))
    if not (root / "imagenette-tiny").is_dir():
        print("files: left out, CCL_DATA has no imagenette-tiny")
        return
    source = load_dataset("folder:imagenette-tiny", root, images_per_class=5).train
    recipe = RECIPES["moco_imagenet"]
    viewer, positions = Viewer(recipe, 0, num_workers=0), torch.arange(len(source))
    paths = sorted((root / "imagenette-tiny" / "train").rglob("*.JPEG"))[: len(source)]

    def usual() -> None:
        for path in paths:
            with Image.open(path) as opened:
                picture = opened.convert("RGB")
            for _ in range(2):
                view(picture, recipe.size, recipe.min_scale, blur=True)

    ours_s, usual_s = fastest(lambda: list(viewer.batches(source, [positions], num_views=2)), usual, rounds=4)
    yield Row("files: JPEG to two views at 224 px ÷ Pillow in one process", usual_s / ours_s, 1.5, at_least=True)
