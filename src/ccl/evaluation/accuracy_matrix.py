"""The accuracy matrix of a stream, with the row of the random encoder: kept, saved and written as a table."""

import csv
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ccl.evaluation.health import Health

COLUMNS = ("after", "data", "probe", "accuracy")
PER_STEP, ALL_CLASS, ALL_DATA = "per_step", "all_class", "all"


@dataclass(frozen=True)
class ProbeResult:
    """What one encoder reaches, in percent: one row of the matrix."""

    per_step: tuple[float, ...]  # T: a probe of D_j's own classes, on D_j's test part
    all_class: tuple[float, ...]  # T: one probe of all classes, on D_j's test part
    all_class_total: float  # that probe on all test parts together
    protocol: str  # how the probes were fitted
    health: Health | None = None
    knn_total: float | None = None  # the nearest neighbours' vote over all classes, on all test parts together


class AccuracyMatrix:
    """Accuracies after each of T steps on each dataset; nan where nothing has been recorded yet.

    The paper's a[i, j] and R[j] are `per_step` and `random_per_step`; its headline number is `all_class_total[T-1]`.
    """

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
        if row is not None and not 0 <= row < self.num_steps:
            raise ValueError(f"row must be None or 0 … {self.num_steps - 1}, got {row}")
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
        """Take over a state of the same number of steps; nothing changes when it doesn't fit."""
        own = self._tensors()
        if state.keys() != own.keys():
            raise ValueError(f"the state must hold {sorted(own)}, got {sorted(state)}")
        for name, value in own.items():
            if state[name].shape != value.shape:
                shapes = f"{tuple(value.shape)}, got {tuple(state[name].shape)}"
                raise ValueError(f"{name} must have shape {shapes}: is it of another number of steps?")
        for name, value in own.items():
            value.copy_(state[name])

    def to_csv(self, path: Path | str) -> None:
        """Write all recorded encoders: after (0 = random initialisation, 1 … T), data (1 … T, all), probe, accuracy."""
        path = Path(path)
        unfinished = path.with_name(path.name + ".part")
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(self._lines())
        os.replace(unfinished, path)  # a reader never meets half a table

    def _lines(self) -> Iterator[tuple[int, int | str, str, str]]:
        for after, row in enumerate([None, *range(self.num_steps)]):
            per_step, all_class, total = (part.tolist() for part in self._rows(row))
            if all(map(math.isnan, [*per_step, *all_class, total])):
                continue
            # repr is the shortest text that reads back as the very same number.
            yield from ((after, data, PER_STEP, repr(value)) for data, value in enumerate(per_step, 1))
            yield from ((after, data, ALL_CLASS, repr(value)) for data, value in enumerate(all_class, 1))
            yield after, ALL_DATA, ALL_CLASS, repr(total)

    @classmethod
    def from_csv(cls, path: Path | str) -> "AccuracyMatrix":
        """Read what `to_csv` wrote; at least one encoder must stand in it."""
        with Path(path).open(newline="", encoding="utf-8") as file:
            header, *lines = list(csv.reader(file)) or [[]]
        if tuple(header) != COLUMNS:
            raise ValueError(f"{path}: the columns must be {', '.join(COLUMNS)}")
        try:
            steps = [int(line[1]) for line in lines if line[1] != ALL_DATA]
            matrix = cls(max(steps, default=0))
            for after, data, probe, accuracy in lines:
                matrix._cell(int(after), data, probe).fill_(float(accuracy))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: not a table of accuracies: {error}") from error
        return matrix

    def _cell(self, after: int, data: str, probe: str) -> Tensor:
        """A view () of the number that one line of the table holds."""
        if not 0 <= after <= self.num_steps:
            raise ValueError(f"after step {after} of {self.num_steps}")
        per_step, all_class, total = self._rows(after - 1 if after else None)
        if (data, probe) == (ALL_DATA, ALL_CLASS):
            return total
        if probe not in (PER_STEP, ALL_CLASS) or int(data) < 1:
            raise ValueError(f"data {data} with probe {probe}")
        return (per_step if probe == PER_STEP else all_class)[int(data) - 1]


def _unknown(*shape: int) -> Tensor:
    return torch.full(shape, math.nan, dtype=torch.float64)
