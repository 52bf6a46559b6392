"""Speed as ratios measured in one run, so that a noisy machine counts on both sides: name, ratio, goal, verdict."""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor

from ccl.data import chain, epoch_batches
from ccl.evaluation import AccuracyMatrix
from ccl.loading import load_settings
from ccl.report import RunLog
from ccl.running.build import build_learner, build_stream, build_viewer
from ccl.running.saving import RunState
from ccl.training import Progress
from ccl.training.checkpoint import CheckpointStore
from ccl.training.stopping import StopRequest
from ccl.views import RECIPES, ViewBatch
from ccl.views.viewer import Viewer


@dataclass(frozen=True)
class Row:
    """One measured ratio; `at_least` says on which side of the goal it should be."""

    name: str
    ratio: float
    goal: float
    at_least: bool

    def __str__(self) -> str:
        holds = self.ratio >= self.goal if self.at_least else self.ratio <= self.goal
        sign = "≥" if self.at_least else "≤"
        return f"{self.name:<52} {self.ratio:8.3f}   {sign} {self.goal:<6} {'holds' if holds else 'falls short'}"


def fastest(*actions: Callable[[], object], rounds: int = 7) -> list[float]:
    """Best seconds of each action, taken in turns so that a slow moment of the machine hits all alike."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for number, action in enumerate(actions):
            started = time.perf_counter()
            action()
            best[number] = min(best[number], time.perf_counter() - started)
    return best


def views(size: int, goals: tuple[float, float]) -> Iterator[Row]:
    """Images per second of the MoCo recipe of this size, ours ÷ kornia's and ÷ Pillow's in one process."""
    import kornia.augmentation as K

    from ccl.data import ArraySource

    recipe, num_images = RECIPES["moco_cifar" if size == 32 else "moco_imagenet"], 256 if size == 32 else 32
    images = torch.randint(256, (num_images, 3, size, size), dtype=torch.uint8)
    viewer, source, positions = Viewer(recipe, 0), ArraySource(images), torch.arange(num_images)
    blur = [K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5)] if recipe.blur_probability else []
    kornia = torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=(recipe.min_scale, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        *blur,
    )
    unit, pictures = images.float() / 255, [source.picture(position) for position in range(num_images)]
    ours_s, kornia_s, pillow_s = fastest(
        lambda: list(viewer.batches(source, [positions], num_views=1)),
        lambda: kornia(unit),
        lambda: [_pillow_view(picture, size, bool(blur)) for picture in pictures],
    )
    yield Row(f"views, {size} px: images/s ÷ kornia", kornia_s / ours_s, goals[0], at_least=True)
    yield Row(f"views, {size} px: images/s ÷ Pillow, one process", pillow_s / ours_s, goals[1], at_least=True)


def _pillow_view(picture: Image.Image, size: int, may_blur: bool) -> Tensor:
    """The recipe as torchvision does it with Pillow, each operation as often as it is drawn."""
    draw = random.random
    side = max(1, round(picture.width * (0.2 + 0.8 * draw()) ** 0.5))
    left, top = int(draw() * (picture.width - side)), int(draw() * (picture.height - side))
    view = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    if draw() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if draw() < 0.8:
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = enhance(view).enhance(0.6 + 0.8 * draw())
        hue, saturation, value = view.convert("HSV").split()
        turn = round(25 * (2 * draw() - 1))
        view = Image.merge("HSV", (hue.point([(h + turn) % 256 for h in range(256)]), saturation, value)).convert("RGB")
    if draw() < 0.2:
        view = view.convert("L").convert("RGB")
    if may_blur and draw() < 0.5:
        view = view.filter(ImageFilter.GaussianBlur(0.1 + 1.9 * draw()))
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).float().div_(255).sub_(0.5).div_(0.25)


def price_of_ccl() -> Row:
    """Seconds of one later-step epoch, CCL ÷ Finetuning, with 4 % of the past kept as in the paper's CIFAR-100."""
    epochs = [_later_epoch("ccl"), _later_epoch("finetuning")]
    ccl, finetuning = fastest(*epochs, rounds=5)
    return Row("CCL's price: a later step's iteration ÷ Finetuning", ccl / finetuning, 1.10, at_least=False)


def _later_epoch(strategy: str) -> Callable[[], None]:
    settings = load_settings("demo", [f"strategy={strategy}", "encoder.backbone=resnet18", "encoder.width=16"])
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    # 80 of 1,080 images are old: the share that the paper's CIFAR-100, T = 5, has on average.
    source = chain([stream.arrivals[1], stream.arrivals[0].subset(torch.arange(80))])
    learner.begin_step(1, source.ids, num_new=len(stream.arrivals[1]))
    optimizer = torch.optim.SGD(learner.encoder.parameters(), 0.01)
    batches = epoch_batches(source.ids, 64, 0)[:8]

    def epoch() -> None:
        plain = learner.wants_plain(len(source))
        seen: ViewBatch
        for seen in viewer.batches(source, batches, moment=(1, 0), num_views=2, plain=plain):
            losses, lesson = learner.losses(seen, (1, 0))
            optimizer.zero_grad()
            torch.autograd.backward(learner.total(losses))
            optimizer.step()
            learner.after_update(lesson)

    return epoch


def saving() -> Iterator[Row]:
    """A save and a restore of everything: ResNet-18 of width 64, queue of 4,096, optimizer, 500 remembered images."""
    settings = load_settings("demo", ["encoder.backbone=resnet18", "moco_v2.queue_size=4096", "batch_size=64"])
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    source = stream.arrivals[0]
    learner.memory.add(source, torch.arange(500), 0, torch.zeros(500), torch.zeros(500))
    learner.begin_step(0, source.ids, num_new=len(source))
    progress = Progress()
    optimizer = progress.take(torch.optim.SGD(learner.encoder.parameters(), 0.01, momentum=0.9), False)

    def update() -> None:
        for seen in viewer.batches(source, [torch.arange(64)], moment=(0, 0), num_views=2):
            losses, lesson = learner.losses(seen, (0, 0))
            optimizer.zero_grad()
            torch.autograd.backward(learner.total(losses))
            optimizer.step()
            learner.after_update(lesson)

    with tempfile.TemporaryDirectory() as scratch:
        log = RunLog(Path(scratch), settings, {"steps": []})
        log.row("step")
        store, matrix = CheckpointStore(Path(scratch) / "checkpoints"), AccuracyMatrix(5)
        state = RunState(learner, matrix, log, store, minutes=10, stop=StopRequest(), stamp={})
        update()
        update_s, save_s, restore_s = fastest(update, lambda: state.save(progress, "phase"), state.restore, rounds=3)
    # The paper's epoch of 10,000 images of 32 px is four times the arithmetic of this network's 16 px.
    epoch_s = update_s * 4 * 10_000 / 64
    yield Row("saving: a save ÷ an epoch of CIFAR-100, T = 5", save_s / epoch_s, 0.02, at_least=False)
    yield Row("resuming: seconds to verify and load all of it", restore_s, 5.0, at_least=False)


def start_up() -> Row:
    """Seconds of `ccl --help` ÷ those of importing torch."""

    def call(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True)

    help_s, torch_s = fastest(call("-m", "ccl", "--help"), call("-c", "import torch"), rounds=5)
    return Row("start-up: ccl --help ÷ import torch", help_s / torch_s, 0.35, at_least=False)


def main() -> None:
    """Measure every row on one thread and print the table."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread\n{'what':<52} {'ratio':>8}   goal")
    for row in (*views(32, (5.0, 20.0)), *views(224, (3.0, 3.0)), price_of_ccl(), *saving(), start_up()):
        print(row, flush=True)


main()
