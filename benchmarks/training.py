"""Training: what the program adds to its arithmetic, what CCL adds to Finetuning, what later steps and ranks cost."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch

from benchmarks.timing import Row, fastest
from ccl import run
from ccl.data import chain, epoch_batches
from ccl.encoders import MomentumEncoder
from ccl.evaluation import AccuracyMatrix
from ccl.loading import load_settings
from ccl.reading import build_viewer
from ccl.runs.build import build_learner, build_plan
from ccl.runs.session import Session
from ccl.runs.stream_builder import build_stream
from ccl.settings import Settings
from ccl.training import Observer, Progress, update
from ccl.training.stop_signals import StopRequest


def efficiency() -> Iterator[Row]:
    """Images a second of a whole run ÷ those of the bare arithmetic on one resident batch."""
    convnet = ("encoder.backbone=convnet", "data.resize=16", "views.size=16", "data.images_per_class=100")
    resnet = ("encoder.backbone=resnet18", "data.resize=32", "views.size=32")
    yield _efficiency("ConvNet, 16 px, batch 64", 0.90, *convnet, "batch_size=64", "epochs=8")
    yield _efficiency("ConvNet, 16 px, batch 256", 0.93, *convnet, "batch_size=256", "epochs=8")
    yield _efficiency("ResNet-18 w16", 0.93, *resnet, "encoder.width=16", "batch_size=64", "data.images_per_class=100")
    yield _efficiency("ResNet-18 w64", 0.95, *resnet, "encoder.width=64", "batch_size=64", "data.images_per_class=32")


def _efficiency(name: str, goal: float, *words: str) -> Row:
    fixed = ("dataset=digits", "steps=1", "strategy=finetuning", "epochs=2", "probe.after=never", "threads=1")
    settings = load_settings("demo", [*fixed, *words])
    before = _bare_epoch(settings)
    with tempfile.TemporaryDirectory() as scratch:
        record = run(settings, Path(scratch) / "run")
    whole = min(row["seconds"] / row["num_images"] for row in record.rows if row["kind"] == "epoch")
    bare = min(before, _bare_epoch(settings))
    return Row(f"efficiency: ccl run ÷ bare arithmetic, {name}", bare / whole, goal, at_least=True)


def _bare_epoch(settings: Settings) -> float:
    """Seconds an image of the arithmetic, the best of some epochs: single calls would be luckier than an epoch is."""
    [step] = build_stream(settings).arrivals
    arithmetic, num_batches = _bare(settings), max(len(step) // settings.batch_size, 1)

    def epoch() -> None:
        for _ in range(num_batches):
            arithmetic()

    return fastest(epoch, rounds=settings.epochs)[0] / (num_batches * settings.batch_size)


def _bare(settings: Settings) -> Callable[[], None]:
    """Query forward and backward, update, key forward, on one batch that is there already."""
    learner = build_learner(settings, torch.device("cpu")).train()
    side = settings.views.to_recipe().size
    images = torch.randn(settings.batch_size, 3, side, side)
    keys = torch.nn.functional.normalize(torch.randn(settings.batch_size, 128), dim=1)
    optimizer = build_plan(settings).make_optimizer(learner)
    key_encoder = cast(MomentumEncoder, learner.objective.key_encoder)

    def arithmetic() -> None:
        loss = (learner.encoder(images) * keys).sum(dim=1).mean()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        key_encoder(images)

    return arithmetic


def demo_time() -> Iterator[Row]:
    """Seconds of the probes ÷ those of training, of one strategy of the demo; selections and saving beside them."""
    with tempfile.TemporaryDirectory() as scratch:
        record = run(load_settings("demo", ["strategy=ccl", "threads=1"]), Path(scratch) / "run")
    trained, probed = (sum(row["seconds"] for row in record.rows if row["kind"] == kind) for kind in ("epoch", "probe"))
    yield Row("probing ÷ training of the demo, CCL", probed / trained, 0.15, at_least=False)
    yield Row("a strategy of the demo, CCL: seconds on one thread", trained + probed, 60.0, at_least=False)


def price_of_ccl() -> Iterator[Row]:
    """Seconds of one later-step epoch, CCL ÷ Finetuning, with 4 % of the past kept as in the paper's CIFAR-100."""
    ccl, finetuning = fastest(_later_epoch("ccl"), _later_epoch("finetuning"), rounds=9)
    yield Row("CCL's price: a later step's iteration ÷ Finetuning", ccl / finetuning, 1.10, at_least=False)


def price_of_recipe() -> Iterator[Row]:
    """Training seconds of the demo's stream, the strategy of `ccl learn` ÷ Finetuning, each step for three epochs."""

    def seconds(strategy: str) -> float:
        words = [f"strategy={strategy}", "epochs=3", "probe.after=never", "threads=1"]
        with tempfile.TemporaryDirectory() as scratch:
            record = run(load_settings("demo", words), Path(scratch) / "run")
        return float(sum(row["seconds"] for row in record.rows if row["kind"] == "epoch"))

    # In turns, so that a slow moment of the machine hits both.
    rounds = [(seconds("multi_view_rehearsal"), seconds("finetuning")) for _ in range(5)]
    recipe, finetuning = (min(column) for column in zip(*rounds, strict=True))
    yield Row("Multi-view Rehearsal's price: a stream ÷ Finetuning", recipe / finetuning, 1.35, at_least=False)


def _later_epoch(strategy: str) -> Callable[[], None]:
    settings = load_settings("demo", [f"strategy={strategy}", "encoder.backbone=resnet18", "encoder.width=16"])
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    # 80 of 1,080 images are old: the share that the paper's CIFAR-100, T = 5, has on average over its five steps.
    source = chain([stream.arrivals[1], stream.arrivals[0].subset(torch.arange(80))])
    learner.begin_step(1, source.ids, num_new=len(stream.arrivals[1]))
    optimizer = torch.optim.SGD(learner.encoder.parameters(), 0.01)
    batches = epoch_batches(source.ids, 64, 0)  # all of them: the first eight happen to hold more old images

    def epoch() -> None:
        plain = learner.wants_plain(len(source))
        for seen in viewer.batches(source, batches, moment=(1, 0), num_views=2, plain=plain):
            update(learner, seen, optimizer, (1, 0))

    return epoch


def late_steps() -> Iterator[Row]:
    """Seconds an image in step 10 ÷ step 1, Simple Rehearsal: the memory must not slow an image down."""
    settings = load_settings(
        "demo",
        [
            *("dataset=embedded", "data.stream=class", "steps=10", "strategy=simple_rehearsal", "epochs=4"),
            *("probe.after=never", "threads=1"),
        ],
    )
    with tempfile.TemporaryDirectory() as scratch:
        record = run(settings, Path(scratch) / "run")
    epochs = [row for row in record.rows if row["kind"] == "epoch"]
    first, last = (min(row["seconds"] / row["num_images"] for row in epochs if row["step"] == step) for step in (1, 10))
    yield Row("late steps: seconds an image in step 10 ÷ step 1", last / first, 1.10, at_least=False)


def saving() -> Iterator[Row]:
    """A save and a restore of everything: ResNet-18 of width 64, queue of 4,096, optimizer, 500 remembered images."""
    settings = load_settings("demo", ["encoder.backbone=resnet18", "moco_v2.queue_size=4096", "batch_size=64"])
    stream, device = build_stream(settings), torch.device("cpu")
    learner, viewer = build_learner(settings, device), build_viewer(settings, device)
    source = stream.arrivals[0]
    learner.memory.add(source, torch.arange(500), 0, torch.zeros(500), torch.zeros(500))
    learner.begin_step(0, source.ids, num_new=len(source))
    progress = Progress()
    optimizer = progress.take(torch.optim.SGD(learner.encoder.parameters(), 0.01, momentum=0.9))

    def saving() -> None:
        state.save(progress, "phase")

    def resuming() -> None:
        state.resume(learner, "", {"accuracy": AccuracyMatrix(5)})

    def one_update() -> None:
        for seen in viewer.batches(source, [torch.arange(64)], moment=(0, 0), num_views=2):
            update(learner, seen, optimizer, (0, 0))

    with tempfile.TemporaryDirectory() as scratch:
        state = Session(Path(scratch), settings, {"steps": []}, Observer(), StopRequest())
        resuming()
        state.log.row("step")
        one_update()
        update_s, save_s, restore_s = fastest(one_update, lambda: state.save(progress, "phase"), resuming, rounds=3)
    # The paper's epoch of 10,000 images of 32 px is four times the arithmetic of this network's 16 px.
    epoch_s = update_s * 4 * 10_000 / 64
    yield Row("saving: a save ÷ an epoch of CIFAR-100, T = 5", save_s / epoch_s, 0.02, at_least=False)
    yield Row("resuming: seconds to verify and load all of it", restore_s, 5.0, at_least=False)


def several_ranks() -> Iterator[Row]:
    """Images a second of torchrun with 2, 4 and 8 ranks of a thread ÷ those of one process with 2 threads.

    All learn the same batch of 64 in as many batch-norm groups. More ranks than cores wait for each other: what the
    last two rows lose beside the first is that, and messages.
    """
    words = [
        *("dataset=digits", "steps=1", "strategy=finetuning", "data.resize=32", "views.size=32", "epochs=3"),
        *("encoder.backbone=resnet18", "encoder.width=32", "data.images_per_class=64"),
        *("probe.after=never", "batch_size=64"),
    ]
    for num_ranks, goal in ((2, 0.95), (4, 0.85), (8, 0.7)):
        asked = [*words, f"encoder.batch_norm_groups={num_ranks}"]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m", "ccl"]
        # In turns, so that a slow moment of the machine hits both.
        rates = [(_rate(["-m", "ccl"], [*asked, "threads=2"]), _rate(torchrun, [*asked, "threads=1"])) for _ in "ab"]
        one, several = (max(column) for column in zip(*rates, strict=True))
        yield Row(f"{num_ranks} ranks of 1 thread ÷ one process of 2 threads", several / one, goal, at_least=True)


def _rate(launcher: list[str], assignments: list[str]) -> float:
    sets = [word for assignment in assignments for word in ("--set", assignment)]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, *launcher, "run", "demo", *sets, "--out", scratch + "/run"]
        subprocess.run(command, check=True, capture_output=True)
        rows = [json.loads(line) for line in (Path(scratch) / "run" / "metrics.jsonl").read_text().splitlines()]
    return float(max(row["num_images"] / row["seconds"] for row in rows if row["kind"] == "epoch"))
