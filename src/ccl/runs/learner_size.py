"""How much memory a learner needs, known before it is made: what a device can't hold is refused with what fits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ccl.catalogue import foreign_kind
from ccl.errors import UserError
from ccl.loading import validated
from ccl.runs.build import build_device, build_learner
from ccl.runs.grid_cells import Cell
from ccl.runs.process_memory import machine_memory
from ccl.settings import Settings, merged

_LARGEST = 2.0**63  # bytes: torch can't count further
_SMALL = 64  # a number up to which no setting makes a learner large


def refuse_too_large(settings: Settings, device: torch.device) -> None:
    """Refuse a learner that the device can't hold, and name the number that makes it so large."""
    limit = device_memory(device)
    needed = learner_bytes(settings)
    if not limit or needed <= limit:
        return
    values = settings.model_dump()
    counts = _counts(values)
    tried = {path: _bytes_with(values, path, _SMALL) for path in counts}
    path = min(tried, key=lambda name: tried[name], default="")
    where = f"device {device}" if device.type == "cuda" else "this machine"
    what = f"needs {_text(needed)} of memory, and {where} has {_text(limit)}"
    if not path or tried[path] >= needed:
        raise UserError(f"encoder.backbone {settings.encoder.backbone} {what}; set a smaller one")
    if tried[path] > limit:
        raise UserError(f"{path} {counts[path]} {what}; set smaller sizes, such as {path}={_SMALL}")
    fitting = _SMALL
    while 2 * fitting < counts[path] and _bytes_with(values, path, 2 * fitting) <= limit:
        fitting *= 2
    raise UserError(f"{path} {counts[path]} {what}; nearest power of two that fits: {path}={fitting}")


def refuse_large_cells(cells: Sequence[Cell]) -> None:
    """The same for the runs of a grid, once for all seeds of a row."""
    rows = {cell.row: cell.settings for cell in reversed(cells)}
    for settings in reversed(rows.values()):
        refuse_too_large(settings, build_device(settings))


def device_memory(device: torch.device) -> int:
    """Bytes that a device has in all; 0 where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def learner_bytes(settings: Settings) -> float:
    """Bytes of a learner with its copies and queues, of its gradients and of its optimizer's state; none is allocated.

    Images, activations and what grows with the stream come on top.
    """
    meta = torch.device("meta")
    stored = settings.model_copy(update={"precision": "float32"})  # as weights are, whatever is computed with
    try:
        with meta:
            learner = build_learner(stored, meta)
    except UserError:
        raise
    except Exception:
        # Sizes that torch can't multiply. A network of others may not know tensors without values: it is let pass.
        return 0.0 if foreign_kind(settings.encoder.backbone) else _LARGEST
    trained = sum(parameter.nbytes for parameter in learner.trained_parameters().values())
    moments = 2 if settings.optimizer.name == "adamw" else 1
    return float(sum(tensor.nbytes for tensor in learner.state_dict().values()) + (1 + moments) * trained)


def _bytes_with(values: Mapping[str, Any], path: str, number: int) -> float:
    """The same with one setting changed; the largest there is where that is not possible."""
    change: Any = number
    for name in reversed(path.split(".")):
        change = {name: change}
    try:
        return learner_bytes(validated(merged(values, change)))
    except UserError:
        return _LARGEST


def _counts(values: Mapping[str, Any], above: str = "") -> dict[str, int]:
    """All settings that are numbers which may make a learner large, by their names."""
    return dict(_found_counts(values, above))


def _found_counts(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _found_counts(value, f"{above}{name}.")
        elif isinstance(value, int) and value > _SMALL:
            yield above + name, value


def _text(num_bytes: float) -> str:
    return f"{'over ' if num_bytes >= _LARGEST else ''}{num_bytes / 1e9:,.1f} GB"
