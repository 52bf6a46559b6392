"""Randomness as a pure function of named integers: no generator, no hidden state, nothing to save or restore.

Every random number of a run is `uniform(ids, num_draws, seed, purpose, step, epoch, view)`: a hash of where it is used,
and of the turn where an image is used there more than once. So it can't depend on the number of workers, on ranks, on
the batch an image happens to be in, or on interruptions.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit changes every output bit with probability one half."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def _absorb(state: NDArray[np.uint64], value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _mix((state ^ value) + _GOLDEN)


def _word(value: int | str) -> NDArray[np.uint64]:
    """One integer, negative or long ones too, or a word such as "crop", as 64 bits."""
    number = zlib.crc32(value.encode()) if isinstance(value, str) else value
    return np.array([number % 2**64], dtype=np.uint64)


def _words(values: Tensor) -> NDArray[np.uint64]:
    return values.cpu().numpy().astype(np.int64).view(np.uint64)


def hashed(*context: int | str) -> int:
    """One 64-bit number that is a pure function of the context, in order."""
    state = np.zeros(1, dtype=np.uint64)
    for value in context:
        state = _absorb(state, _word(value))
    return int(state[0])


def uniform(ids: Tensor, num_draws: int, *context: int | str, turns: Tensor | None = None) -> Tensor:
    """Numbers in [0, 1) of shape (N, num_draws): row n depends on ids[n], turns[n] and the context only.

    Turns (N,) are not negative; turn 0 is the same as none.
    """
    rows = _absorb(_word(hashed(*context)), _words(ids))  # (N,)
    if turns is not None:
        numbers = _words(turns)
        # After a word, so that a turn of an image can't be taken for an image of a longer context.
        rows = np.where(numbers > 0, _absorb(_absorb(rows, _word("turn")), numbers), rows)
    draws = _absorb(rows[:, None], np.arange(num_draws, dtype=np.uint64)[None, :])  # (N, num_draws)
    # 24 bits are exact in float32, so that no draw can round up to 1.
    return torch.from_numpy((draws >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def permutation(ids: Tensor, *context: int | str) -> Tensor:
    """An order of the rows of `ids` (distinct integers) that depends on them and the context only: positions, (N,)."""
    keys = _absorb(_word(hashed(*context)), _words(ids))
    return torch.from_numpy(np.argsort(keys, kind="stable"))


def generator(*context: int | str) -> torch.Generator:
    """A fresh torch generator on the CPU, seeded by the context; for bulk draws inside one iteration."""
    return torch.Generator().manual_seed(hashed(*context) % 2**63)


@contextmanager
def seeded(*context: int | str) -> Iterator[None]:
    """Run a block (the initialisation of a network, say) with torch's global state seeded; put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hashed(*context) % 2**63)
        yield
