"""What the pages presume in the reader's folder, small: drops, photos, labelled images, data, shards, weights."""

import os
import shutil
from itertools import cycle
from pathlib import Path

import torch
from made_shards import write_tar
from networks import make_encoder

import ccl

ROOT = Path(__file__).parents[2]
DOMAINS = ("symbols", "textures", "capitals", "greek")


def lay_out(folder: Path) -> None:
    """All of it, in this folder."""
    sets = {name: ccl.load_dataset(name, resize=16, images_per_class=4) for name in DOMAINS}
    files = {name: [found.train.encoded(position) for position in range(40)] for name, found in sets.items()}
    places = ("week-1", "week-2", "week-3", "week-4", "photos", "new-photos", "typical-images", "camera/front")
    for place, name in zip(places, cycle(DOMAINS), strict=False):
        for number, content in enumerate(files[name]):
            _write(folder / place / f"{number:03d}.png", content)
    shutil.make_archive(str(folder / "week-2"), "zip", folder / "week-2")
    (folder / "more").mkdir()
    for number in range(0, 40, 2):
        sets["capitals"].train.picture(number).save(folder / "more" / f"{number:03d}.jpg")
    sets["symbols"].train.picture(0).save(folder / "query.jpg")
    symbols = sets["symbols"]
    for kind, source, labels in (
        ("train", symbols.train, symbols.train_labels),
        ("val", symbols.test, symbols.test_labels),
    ):
        for number, label in enumerate(labels[:80].tolist()):
            name = f"{symbols.class_names[label]}/{kind}-{number:03d}.png"
            _write(folder / "labelled" / name, source.encoded(number))
            _write(folder / "IMAGES" / kind / name, source.encoded(number))
    _lay_out_shards(folder, files)
    for name, found in sets.items():
        for number in range(80):
            _write(folder / "DROPS" / name / f"{number:03d}.png", found.test.encoded(number))
    torch.save(make_encoder("resnet18", stem="imagenet").backbone.state_dict(), folder / "resnet18.pt")


def _lay_out_shards(folder: Path, files: dict[str, list[bytes]]) -> None:
    """Thirteen tars of a drop, and a data root with a few shards beside the real CIFAR-100, where there is one."""
    for shard in range(13):
        part = {f"{number:03d}.png": files["greek"][number] for number in range(shard, 40, 13)}
        write_tar(folder / "drops" / f"week-1-{shard:06d}.tar", part)
    everything = [content for contents in files.values() for content in contents]
    for number in range(4):
        part = {}
        for position in range(number, len(everything), 4):  # four classes, each in every shard
            label = str(position // 4 % 4).encode()
            part |= {f"{position:03d}.png": everything[position], f"{position:03d}.cls": label}
        write_tar(folder / "DATA" / "imagenet" / f"{'val' if number == 0 else 'train'}-{number}.tar", part)
    real = Path(os.environ.get("CCL_DATA") or ROOT.parent / "shared" / "data") / "cifar-100-python"
    if real.is_dir():
        (folder / "DATA" / real.name).symlink_to(real.resolve())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
