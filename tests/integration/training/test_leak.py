"""During step t no image outside D_t and the rehearsal memory is ever read."""

from collections.abc import Callable

import pytest
import torch
from combinations import ALL_PAIRS
from PIL import Image
from tiny import Watcher, learn, tiny_settings
from torch import Tensor

from ccl.data import ImageSource, JoinedSource
from ccl.data.decoding import Reduction
from ccl.runs.stream_builder import build_stream
from ccl.strategies import STRATEGIES


class Spy(ImageSource):
    """A source that tells whenever a pixel of it is read."""

    def __init__(self, source: ImageSource, report: Callable[[], None]) -> None:
        self._source, self._report = source, report
        self.ids = source.ids

    @property
    def image_size(self) -> tuple[int, int] | None:
        return self._source.image_size

    def read(self, positions: Tensor) -> Tensor:
        self._report()
        return self._source.read(positions)

    def picture(self, position: int, reduction: Reduction | None = None) -> Image.Image:
        self._report()
        return self._source.picture(position, reduction)

    def encoded(self, position: int) -> bytes:
        self._report()
        return self._source.encoded(position)

    def subset(self, positions: Tensor) -> "Spy":
        return Spy(self._source.subset(positions), self._report)


def spied_run(strategy: str, objective: str, cheat: bool = False) -> set[tuple[int, int]]:
    """Pairs (step in which a read happened, step whose data was read)."""
    settings = tiny_settings(
        "dataset=symbols,textures,greek", f"strategy={strategy}", f"objective={objective}", "epochs=1"
    )
    stream, watcher, reads = build_stream(settings), Watcher(), set[tuple[int, int]]()
    spies: list[ImageSource] = [
        Spy(source, lambda owner=number: reads.add((watcher.step, owner)))  # type: ignore[misc]
        for number, source in enumerate(stream.arrivals)
    ]
    arrivals = [spies[0], JoinedSource([spies[1], spies[0]]), spies[2]] if cheat else spies
    learner, _ = learn(settings, watcher, arrivals, stream)
    assert all(torch.isfinite(value).all() for value in learner.encoder.state_dict().values())
    return reads


@pytest.mark.parametrize(
    ("strategy", "objective"), [pair for pair in ALL_PAIRS if not STRATEGIES[str(pair.values[0])].all_at_once]
)
def test_a_step_reads_its_own_data_only(strategy: str, objective: str) -> None:
    assert spied_run(strategy, objective) == {(0, 0), (1, 1), (2, 2)}


def test_the_spies_would_see_a_leak() -> None:
    assert (1, 0) in spied_run("finetuning", "moco_v2", cheat=True)


def test_the_memory_holds_nothing_but_images_that_were_seen() -> None:
    settings = tiny_settings("strategy=ccl")
    stream = build_stream(settings)
    learner, _ = learn(settings, stream=stream)
    memory = learner.memory
    for number in range(len(memory)):
        source = stream.arrivals[int(memory.steps[number])]
        position = source.ids.tolist().index(int(memory.ids[number]))
        assert memory.files[number] == source.encoded(position)
