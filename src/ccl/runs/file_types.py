"""What the small files of a run folder hold, by type: anything else is refused in one line before it is used."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Typed(BaseModel):
    model_config = ConfigDict(strict=True)  # and what is not named here may be anything


class Status(_Typed):
    """`status.json`."""

    state: str
    reason: str = ""
    step: _Count = 0
    epoch: _Count = 0
    peak_memory_bytes: _Count = 0
    stored_bytes: dict[str, _Count] = {}
    pid: _Count = 0
    host: str = ""
    started: float = 0.0
    updated: float = 0.0
    files: dict[str, str] = {}  # SHA-256 by name


class _Step(_Typed):
    name: str
    num_images: _Count = 0
    num_test_images: _Count | None = None


class Protocol(_Typed):
    """`protocol.json`."""

    dataset: str
    steps: list[_Step]
    all_at_once: bool = False
    backbone: str = ""
    device: str = ""


class _Row(_Typed):
    kind: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    accuracy: float = 0.0


class _EpochRow(_Row):
    step: _Count
    epoch: _Count
    losses: dict[str, float]


class _ProbeRow(_Row):
    protocol: str


_ROWS: Mapping[str, type[_Row]] = {"epoch": _EpochRow, "probe": _ProbeRow}


def typed(model: type[BaseModel], values: Any) -> dict[str, Any]:
    """The values, if they are of these types; raises ValueError in one line."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(
            ": ".join([*([".".join(map(str, first["loc"]))] if first["loc"] else []), first["msg"]])
        ) from None
    return dict(values)


def typed_row(values: Any) -> dict[str, Any]:
    """A row of `metrics.jsonl`."""
    row = typed(_Row, values)
    return typed(_ROWS.get(row["kind"], _Row), row)
