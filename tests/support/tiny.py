"""A stream small enough to be learned in a second, and a way to learn it and look at everything."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ccl.data import ImageSource
from ccl.loading import load_settings
from ccl.reading import build_viewer
from ccl.runs.build import build_learner, build_plan, build_selection
from ccl.runs.stream_builder import Stream, build_stream
from ccl.settings import Settings
from ccl.training import Learner, Observer, Remembered, learn_stream

TINY = (
    *("dataset=symbols,textures", "data.resize=16", "data.images_per_class=6", "data.classes=4", "data.workers=0"),
    *("epochs=2", "batch_size=12", "encoder.width=4", "encoder.dim=8", "memory.per_cluster=2"),
    *("moco_v2.queue_size=32", "extra_sample_queue.size=8", "predictive_distillation.hidden=8", "alignment.hidden=8"),
    *("pnr.hidden=8", "pnr.queue_size=32", "mae.decoder_width=8", "mae.decoder_depth=1", "mae.decoder_heads=2"),
)


def tiny_settings(*assignments: str) -> Settings:
    return load_settings("demo", [*TINY, *assignments])


@dataclass
class Watcher(Observer):
    """An observer that writes down everything."""

    losses: list[dict[str, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    kept: list[Remembered] = field(default_factory=list)
    step: int = -1
    on_update: Callable[[], None] = lambda: None

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        self.step = step
        self.sizes.append((num_new, num_old))

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        self.losses.append(dict(losses))
        self.on_update()

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        self.rates.append(learning_rate)

    def remembered(self, step: int, what: Remembered) -> None:
        self.kept.append(what)


def learn(
    settings: Settings,
    watcher: Watcher | None = None,
    arrivals: Sequence[ImageSource] | None = None,
    stream: Stream | None = None,
    learner: Learner | None = None,
) -> tuple[Learner, Watcher]:
    """Learn the settings' stream without probing it."""
    watcher = watcher or Watcher()
    stream = stream or build_stream(settings)
    device = torch.device("cpu")
    learner = learner or build_learner(settings, device)
    learn_stream(
        learner,
        arrivals or stream.arrivals,
        build_viewer(settings, device),
        build_plan(settings),
        selection=build_selection(settings),
        num_clusters=stream.num_clusters,
        observer=watcher,
    )
    return learner, watcher


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Bit for bit, names included."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
