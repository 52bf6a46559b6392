"""Procedural textures: each is a field of values in [0, 1] with random frequency, phase and tilt."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SUPERSAMPLING = 2

# Coordinates run over [0, 1) across and down; parameters of shape (N, 1, 1) make one picture each.


def _grid(num: int, side: int, tilt: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Coordinates (N, side, side), turned by `tilt` degrees give or take 8, with a random origin."""
    down, across = np.mgrid[0:side, 0:side] / side
    angle = np.radians(tilt + rng.uniform(-8, 8, (num, 1, 1)))
    origin_x, origin_y = rng.uniform(0, 1, (2, num, 1, 1))
    x = across * np.cos(angle) + down * np.sin(angle) + origin_x
    y = down * np.cos(angle) - across * np.sin(angle) + origin_y
    return x, y


def _between(low: float, high: float, num: int, rng: np.random.Generator) -> Floats:
    return rng.uniform(low, high, (num, 1, 1))


def _wave(x: Floats) -> Floats:
    return 0.5 + 0.5 * np.sin(2 * np.pi * x)


def _sharp(values: Floats) -> Floats:
    """Nearly black and white, with edges a little soft."""
    return np.clip(0.5 + 4 * (values - 0.5), 0, 1)


def _stripes(tilt: float) -> Callable[[int, int, np.random.Generator], Floats]:
    def draw(num: int, side: int, rng: np.random.Generator) -> Floats:
        x, _ = _grid(num, side, tilt, rng)
        return _sharp(_wave(x * _between(2.5, 5, num, rng)))

    return draw


def _checker(num: int, side: int, rng: np.random.Generator) -> Floats:
    x, y = _grid(num, side, 0, rng)
    frequency = 2 * np.pi * _between(1.5, 3, num, rng)
    return _sharp(0.5 + np.sin(x * frequency) * np.sin(y * frequency))


def _dots(num: int, side: int, rng: np.random.Generator) -> Floats:
    x, y = _grid(num, side, 30, rng)
    frequency = _between(2.5, 4.5, num, rng)
    x, y = (x * frequency) % 1 - 0.5, (y * frequency) % 1 - 0.5
    return np.clip(0.5 + 8 * (_between(0.28, 0.38, num, rng) - np.hypot(x, y)), 0, 1)


def _rings(num: int, side: int, rng: np.random.Generator) -> Floats:
    down, across = np.mgrid[0:side, 0:side] / side
    centre_x, centre_y = rng.uniform(0.2, 0.8, (2, num, 1, 1))
    radius = np.hypot(across - centre_x, down - centre_y)
    return _sharp(_wave(radius * _between(3, 6, num, rng) + _between(0, 1, num, rng)))


def _noise(low: float, high: float) -> Callable[[int, int, np.random.Generator], Floats]:
    """A dozen waves of random directions with frequencies between the two bounds."""

    def draw(num: int, side: int, rng: np.random.Generator) -> Floats:
        down, across = np.mgrid[0:side, 0:side] / side
        values = np.zeros((num, side, side))
        for _ in range(12):
            frequency, angle = _between(low, high, num, rng), _between(0, 2 * np.pi, num, rng)
            phase = _between(0, 2 * np.pi, num, rng)
            values += np.sin(2 * np.pi * frequency * (across * np.cos(angle) + down * np.sin(angle)) + phase)
        return np.asarray(np.clip(0.5 + values / 8, 0, 1))

    return draw


def _bricks(num: int, side: int, rng: np.random.Generator) -> Floats:
    x, y = _grid(num, side, 0, rng)
    frequency = _between(3, 5, num, rng)
    row = y * frequency
    along = x * frequency / 2 + 0.5 * (np.floor(row) % 2)
    to_joint = np.minimum(np.minimum(row % 1, 1 - row % 1), 2 * np.minimum(along % 1, 1 - along % 1))
    return np.asarray(np.clip(10 * (to_joint - 0.06), 0, 1))


def _waves(num: int, side: int, rng: np.random.Generator) -> Floats:
    x, y = _grid(num, side, 0, rng)
    bend = _between(0.05, 0.09, num, rng) * np.sin(2 * np.pi * x * _between(1.8, 2.8, num, rng))
    return _sharp(_wave((y + bend) * _between(3, 5, num, rng)))


TEXTURES: dict[str, Callable[[int, int, np.random.Generator], Floats]] = {
    "upright stripes": _stripes(0),
    "level stripes": _stripes(90),
    "diagonal stripes": _stripes(45),
    "checker": _checker,
    "dots": _dots,
    "rings": _rings,
    "coarse noise": _noise(1, 2.5),
    "fine noise": _noise(5, 8),
    "bricks": _bricks,
    "waves": _waves,
}


def fields(num_each: int, size: int, rng: np.random.Generator) -> Floats:
    """Every texture `num_each` times, drawn at twice the size and averaged down: (10·num_each, H, W) in [0, 1]."""
    large = np.concatenate([draw(num_each, size * _SUPERSAMPLING, rng) for draw in TEXTURES.values()])
    return np.asarray(large.reshape(len(large), size, _SUPERSAMPLING, size, _SUPERSAMPLING).mean(axis=(2, 4)))
