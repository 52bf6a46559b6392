"""The rehearsal memory holds the images themselves."""

import csv
from pathlib import Path

import torch
from torch import Tensor

from ccl.data import ArraySource
from ccl.memory import RehearsalMemory


def source(count: int, first_id: int = 0) -> ArraySource:
    images = torch.randint(256, (count, 3, 7, 5), generator=torch.Generator().manual_seed(first_id), dtype=torch.uint8)
    return ArraySource(images, first_id + torch.arange(count))


def add(memory: RehearsalMemory, images: ArraySource, positions: list[int], step: int) -> None:
    count = len(positions)
    memory.add(images, torch.tensor(positions), step, torch.arange(count), 0.5 * torch.arange(count))


def test_images_come_back_bit_for_bit_after_the_source_is_gone() -> None:
    memory, images = RehearsalMemory(), source(6, 100)
    expected = images.images[[1, 4]].clone()
    add(memory, images, [1, 4], 0)
    images.images.zero_()  # the old data is deleted
    kept = memory.source_like(source(1))
    assert torch.equal(kept.read(torch.arange(2)), expected)
    assert kept.ids.tolist() == [101, 104]


def test_the_memory_grows_and_keeps_its_order() -> None:
    memory = RehearsalMemory()
    add(memory, source(6), [0, 2], 0)
    add(memory, source(6, 50), [5], 1)
    assert memory.ids.tolist() == [0, 2, 55]
    assert memory.steps.tolist() == [0, 0, 1]


def test_images_of_another_size_stay_encoded() -> None:
    memory = RehearsalMemory()
    add(memory, source(3), [0, 1], 0)
    other = ArraySource(torch.zeros(2, 3, 9, 9, dtype=torch.uint8))
    assert memory.source_like(other).image_size is None
    assert memory.source_like(other).picture(1).size == (5, 7)


def test_state_dict_round_trip() -> None:
    memory, other = RehearsalMemory(), RehearsalMemory()
    add(memory, source(6), [3, 1], 2)
    other.load_state_dict({name: value.clone() for name, value in memory.state_dict().items()})
    assert other.files == memory.files
    before: dict[str, Tensor] = memory.state_dict()
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())
    empty = RehearsalMemory()
    empty.load_state_dict(RehearsalMemory().state_dict())
    assert len(empty) == 0


def test_the_folder_shows_the_images(tmp_path: Path) -> None:
    memory = RehearsalMemory()
    add(memory, source(6), [3, 1], 2)
    memory.write(tmp_path / "memory")
    with (tmp_path / "memory" / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["3", "1"]
    assert rows[1] == {"file": "000001.png", "id": "1", "step": "3", "cluster": "1", "score": "0.5"}
    assert (tmp_path / "memory" / "000000.png").read_bytes() == memory.files[0]
