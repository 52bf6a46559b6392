"""Numbers that sum up a stream, each a function of the accuracy matrix a[i, j]: after step i, on dataset D_j.

Rows and columns run over the T steps in order. Results are in the accuracies' own unit (percent in, percent out).
A stream of one step has no past and no future: its Forgetting and Forward Transfer are nan.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# What may be read as a matrix or a row: nested lists, an array, a tensor on any device.
Numbers = Sequence[Any] | NDArray[Any] | Tensor


def _array(numbers: Numbers) -> NDArray[np.float64]:
    plain = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
    try:
        return np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"accuracies must be numbers in rows of one length: {error}") from error


def _matrix(accuracy: Numbers) -> NDArray[np.float64]:
    matrix = _array(accuracy)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"the accuracy matrix must be (T, T) with T of at least 1, got shape {matrix.shape}")
    return matrix


def _require_known(values: NDArray[np.float64], what: str) -> None:
    if np.isnan(values).any():
        raise ValueError(f"{what} must be known, but {int(np.isnan(values).sum())} of {values.size} are nan")


def forgetting(accuracy: Numbers) -> float:
    """How far below its best each earlier dataset ended, on average (Additional results, F); never negative.

    An entry not measured (nan) doesn't take part in the maximum; the last row must be known, but for its last entry.

    >>> ccl.evaluation.forgetting([[80, 30, 20], [76, 70, 25], [74, 67, 60]])  # (80 - 74 + 70 - 67) / 2
    4.5
    """
    matrix = _matrix(accuracy)  # (T, T)
    if len(matrix) == 1:
        return float("nan")
    past = matrix[:, :-1]  # (T, T-1)
    _require_known(past[-1], "the accuracies after the last step")
    # The paper's maximum runs over all t, also before D_i was seen and up to T itself.
    return float((np.nanmax(past, axis=0) - past[-1]).mean())


def forward_transfer(accuracy: Numbers, random_accuracy: Numbers) -> float:
    """What the encoder gains on a dataset just before it sees it, over a random one (Additional results, FT).

    `random_accuracy` is R, (T,), of the encoder as initialised. R of the first dataset is not used and may be nan.

    >>> ccl.evaluation.forward_transfer([[80, 30, 20], [76, 70, 25], [74, 67, 60]], [10, 20, 20])  # (10 + 5) / 2
    7.5
    """
    matrix, baseline = _matrix(accuracy), _array(random_accuracy)  # (T, T), (T,)
    if baseline.shape != (len(matrix),):
        raise ValueError(f"random_accuracy must have shape ({len(matrix)},) as the matrix, got {baseline.shape}")
    if len(matrix) == 1:
        return float("nan")
    before = np.diagonal(matrix, offset=1)  # (T-1,), a[i-1, i]
    _require_known(before, "the accuracies just before each dataset was learned")
    _require_known(baseline[1:], "the random accuracies")
    return float((before - baseline[1:]).mean())


def plasticity(accuracy: Numbers) -> float:
    """How well each dataset is known right after it was learned, on average: the mean of the diagonal.

    Beside Forgetting, what keeping the past costs the present: whoever learns nothing new forgets nothing.

    >>> ccl.evaluation.plasticity([[80, 30, 20], [76, 70, 25], [74, 67, 60]])  # (80 + 70 + 60) / 3
    70.0
    """
    after_its_step = np.diagonal(_matrix(accuracy))  # (T,), a[i, i]
    _require_known(after_its_step, "the accuracies right after each dataset was learned")
    return float(after_its_step.mean())


def average_accuracy(accuracy: Numbers) -> float:
    """The mean of the last row: how good the final encoder is on all datasets, each with the same weight."""
    last = _matrix(accuracy)[-1]  # (T,)
    _require_known(last, "the accuracies after the last step")
    return float(last.mean())
