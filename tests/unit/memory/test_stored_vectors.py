"""Vectors beside the memory's images: they stay in step with them, are saved, and may be missing."""

import torch
from torch import Tensor

from ccl.data import ArraySource
from ccl.memory import RehearsalMemory
from ccl.memory.budget import Budget

NAN = float("nan")


def source(count: int, first_id: int) -> ArraySource:
    pixels = torch.arange(count * 48, dtype=torch.uint8).view(count, 3, 4, 4)
    return ArraySource(pixels, first_id + torch.arange(count))


def add(memory: RehearsalMemory, count: int, step: int, vectors: dict[str, Tensor] | None) -> None:
    nothing = torch.full((count,), -1), torch.full((count,), NAN)
    memory.add(source(count, 100 * step), torch.arange(count), step, *nothing, vectors)


def by_id(memory: RehearsalMemory, kind: str) -> dict[int, list[float]]:
    return dict(zip(memory.ids.tolist(), memory.vectors[kind].tolist(), strict=True))


def numbered(count: int, step: int) -> dict[str, Tensor]:
    """A vector that says whose it is."""
    return {"features": torch.stack([torch.full((count,), 100.0 * step) + torch.arange(count), torch.ones(count)], 1)}


def test_a_budget_drops_vectors_with_their_images() -> None:
    memory = RehearsalMemory()
    add(memory, 6, 0, numbered(6, 0))
    add(memory, 6, 1, numbered(6, 1))
    memory.trim(Budget(7, "images"), 0)
    assert len(memory) == 7
    assert by_id(memory, "features") == {number: [float(number), 1.0] for number in memory.ids.tolist()}
    assert memory.recall(torch.tensor([3, 0]))["features"][:, 0].tolist() == memory.ids[[3, 0]].tolist()


def test_they_are_saved_and_come_back() -> None:
    memory, other = RehearsalMemory(), RehearsalMemory()
    add(memory, 3, 0, numbered(3, 0))
    state = memory.state_dict()
    assert sorted(state) == ["bytes", "clusters", "ids", "lengths", "scores", "steps", "vectors.features"]
    other.load_state_dict(state)
    assert by_id(other, "features") == by_id(memory, "features")
    assert other.files == memory.files


def test_a_memory_that_was_saved_without_vectors_can_get_some_later() -> None:
    memory, other = RehearsalMemory(), RehearsalMemory()
    add(memory, 2, 0, None)
    state = memory.state_dict()
    assert "vectors.features" not in state
    add(other, 1, 0, numbered(1, 0))
    other.load_state_dict(state)
    assert other.vectors == {}
    add(other, 2, 1, numbered(2, 1))
    assert other.vectors["features"][:2].isnan().all()
    assert other.vectors["features"][2:].tolist() == [[100.0, 1.0], [101.0, 1.0]]
    add(other, 1, 2, None)
    assert other.vectors["features"].shape == (5, 2)
    assert other.vectors["features"][4].isnan().all()
