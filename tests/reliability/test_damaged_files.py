"""Any file of a folder damaged in any way is found, or makes no difference; and nothing is deleted for it."""

import random
from pathlib import Path

import pytest
from damage import MAKERS, SMALL, Damaged, copied

Make = dict[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    place = tmp_path_factory.mktemp("made")
    return {kind: make(place / kind) for kind, make in MAKERS.items()}


@pytest.fixture(params=MAKERS)
def damaged(request: pytest.FixtureRequest, made: Make, tmp_path: Path) -> Damaged:
    return copied(made[request.param], tmp_path)


# Files of which any use reads little or nothing: each flip goes through all uses, so that a draw must do.
UNREAD = ("settings.yaml", "learning/", ".confusion.png")
DRAWN = 10_000


def bits_of(damaged: Damaged, name: str, share: float) -> list[int]:
    """Every bit of a small file, and of the large ones a draw; `share` of them."""
    size, draw = len(damaged.whole[name]), random.Random(name)
    num_large = sum(len(content) >= SMALL for content in damaged.whole.values())
    many = 8 * size if size < SMALL else DRAWN // num_large + 1
    if damaged.reader(name) is None or name == "settings.yaml":
        many = 150 if damaged.is_encoder else 500
    return sorted(draw.sample(range(8 * size), min(8 * size, max(1, int(share * many)))))


def test_some_bits(damaged: Damaged) -> None:
    for name in damaged.names:
        damaged.flip(name, bits_of(damaged, name, 0.0005), checked=1)
    print(damaged.folder.name, damaged.counts)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
def test_every_bit(damaged: Damaged, shard: int) -> None:
    for name in damaged.names[shard::4]:
        damaged.flip(name, bits_of(damaged, name, 1.0))
    print(damaged.folder.name, shard, damaged.counts)
