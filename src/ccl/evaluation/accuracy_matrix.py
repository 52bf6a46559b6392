"""The accuracy matrix of a stream, with the row of the random encoder, and the numbers that sum it up.

a[i, j] is the accuracy after step i on dataset D_j. Results are in the accuracies' own unit (percent in, percent out).
A stream of one step has no past and no future: its Forgetting and Forward Transfer are nan.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.atomic_files import replacing
from ccl.evaluation.health import Health

COLUMNS = ("after", "data", "probe", "accuracy")
PER_STEP, ALL_CLASS, ALL_DATA = "per_step", "all_class", "all"
# What may be read as a matrix or a row: nested lists, an array, a tensor on any device.
Numbers = Sequence[Any] | NDArray[Any] | Tensor


@dataclass(frozen=True)
class ProbeResult:
    """The accuracies of one encoder, in percent: one row of the matrix."""

    per_step: tuple[float, ...]  # T: a probe of D_j's own classes, on D_j's test part
    all_class: tuple[float, ...]  # T: one probe of all classes, on D_j's test part
    all_class_total: float  # that probe on all test parts together
    protocol: str  # how the probes were fitted
    health: Health | None = None
    knn_total: float | None = None  # the nearest neighbours' vote over all classes, on all test parts together


class AccuracyMatrix:
    """Accuracies after each of T steps on each dataset, and of the random encoder; nan where not recorded yet."""

    def __init__(self, num_steps: int) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        self.num_steps = num_steps
        self.per_step = _unknown(num_steps, num_steps)  # (T, T)
        self.all_class = _unknown(num_steps, num_steps)  # (T, T)
        self.all_class_total = _unknown(num_steps)  # (T,)
        self.random_per_step = _unknown(num_steps)  # (T,)
        self.random_all_class = _unknown(num_steps)  # (T,)
        self.random_total = _unknown()  # ()

    def record(self, row: int | None, result: ProbeResult) -> None:
        """Write the result of the encoder after step `row` (0 … T-1), or as initialised (None)."""
        for accuracies in (result.per_step, result.all_class):
            if len(accuracies) != self.num_steps:
                raise ValueError(f"a result must have {self.num_steps} accuracies, got {len(accuracies)}")
        per_step, all_class, total = self._rows(row)
        per_step.copy_(torch.tensor(result.per_step, dtype=torch.float64))
        all_class.copy_(torch.tensor(result.all_class, dtype=torch.float64))
        total.fill_(result.all_class_total)

    def _rows(self, row: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Views (T,), (T,) and () of what belongs to one encoder."""
        if row is None:
            return self.random_per_step, self.random_all_class, self.random_total
        return self.per_step[row], self.all_class[row], self.all_class_total[row]

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def state_dict(self) -> dict[str, Tensor]:
        """Copies, float64."""
        return {name: value.clone() for name, value in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a state of the same number of steps; one that does not fit changes nothing."""
        own = self._tensors()
        if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in own.items()}:
            raise ValueError(f"the state of an accuracy matrix is not of {self.num_steps} steps")
        for name, value in own.items():
            value.copy_(state[name])

    def _cells(self) -> Iterator[tuple[int, str, str, Tensor]]:
        """Each number's place in the table (after, data, probe) and a view () of it."""
        for after, row in enumerate([None, *range(self.num_steps)]):
            per_step, all_class, total = self._rows(row)
            yield from ((after, str(data), PER_STEP, value) for data, value in enumerate(per_step, 1))
            yield from ((after, str(data), ALL_CLASS, value) for data, value in enumerate(all_class, 1))
            yield after, ALL_DATA, ALL_CLASS, total

    def to_csv(self, path: Path | str) -> None:
        """Write all recorded encoders: after (0 = random initialisation, 1 … T), data (1 … T, all), probe, accuracy."""
        cells = list(self._cells())
        recorded = {after for after, _, _, value in cells if not value.isnan()}
        with replacing(Path(path)) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            # repr is the shortest text that reads back as the very same number.
            writer.writerows((*place, repr(float(value))) for *place, value in cells if place[0] in recorded)

    @classmethod
    def from_csv(cls, path: Path | str) -> "AccuracyMatrix":
        """Read what `to_csv` wrote; at least one encoder must stand in it."""
        with Path(path).open(newline="", encoding="utf-8") as file:
            try:
                header, *lines = list(csv.reader(file)) or [[]]
            except csv.Error as error:
                raise ValueError(f"{path}: not a table of accuracies: {error}") from error
        if tuple(header) != COLUMNS:
            raise ValueError(f"{path}: the columns must be {', '.join(COLUMNS)}")
        try:
            num_steps = max((int(line[1]) for line in lines if line[1] != ALL_DATA), default=0)
            if num_steps > len(lines):  # each step has a line of its own
                raise ValueError(f"{num_steps} steps in {len(lines)} lines")
            matrix = cls(num_steps)
            cells = {(str(after), data, probe): value for after, data, probe, value in matrix._cells()}
            for after, data, probe, accuracy in lines:
                cells[after, data, probe].fill_(float(accuracy))
        except (ValueError, IndexError, KeyError) as error:
            raise ValueError(f"{path}: not a table of accuracies: {error}") from error
        return matrix


def _unknown(*shape: int) -> Tensor:
    return torch.full(shape, math.nan, dtype=torch.float64)


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

    >>> ccl.evaluation.plasticity([[80, 30, 20], [76, 70, 25], [74, 67, 60]])  # (80 + 70 + 60) / 3
    70.0
    """
    after_its_step = np.diagonal(_matrix(accuracy))  # (T,), a[i, i]
    _require_known(after_its_step, "the accuracies right after each dataset was learned")
    return float(after_its_step.mean())
